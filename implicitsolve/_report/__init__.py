"""What is installed here, and whether it works: ``python -m implicitsolve``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict

from implicitsolve._report._environment import environment
from implicitsolve._report._self_test import Check, self_test
from implicitsolve._report._text import sections, verdict


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the report to standard output; return 1 if a part of the self-test failed, else 0."""
    parser = argparse.ArgumentParser("python -m implicitsolve", description="What is installed, and whether it works.")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--no-self-test", action="store_true", help="only say what is installed")
    options = parser.parse_args(arguments)

    found = environment()
    if not options.json:
        _say("To report a problem, paste this block into the issue:\n\n```text", sections(found), "self-test")
    checks: list[Check] = []
    for check in () if options.no_self_test else self_test():
        checks.append(check)
        if not options.json:
            _say(verdict(check))
    if options.json:
        _say(json.dumps({**found, "self-test": [asdict(check) for check in checks]}, indent=2))
    else:
        _say(*([] if checks else ["  not run"]), "```")
    return int(not all(check.ok for check in checks))


def _say(*lines: str) -> None:
    print(*lines, sep="\n", flush=True)  # noqa: T201
