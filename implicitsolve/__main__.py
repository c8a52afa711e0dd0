"""``python -m implicitsolve``: what is installed, whether it works, and a block to paste into an issue."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

from implicitsolve import _report
from implicitsolve._report import Check, environment, try_part


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the report to standard output; return 1 if a part of the self-test failed, else 0."""
    parser = argparse.ArgumentParser("python -m implicitsolve", description="What is installed, and whether it works.")
    parser.add_argument("task", nargs="?", choices=("report", "compile"), default="report", help="default: report")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--no-self-test", action="store_true", help="only report what is installed")
    options = parser.parse_args(arguments)
    if options.task == "compile":
        return _compile()

    found = environment()
    if not options.json:
        _say("To report a problem, paste this block into the issue:\n\n```text")
        _say(*_report.lines_of(found), "self-test")
    checks = [] if options.no_self_test else _run(_report.list_parts(), quiet=options.json)
    if options.json:
        _say(json.dumps({**found, "self-test": [asdict(check) for check in checks]}, indent=2))
    else:
        _say(*([] if checks else ["  not run"]), "```")
    return int(not all(check.ok for check in checks))


def _compile() -> int:
    """Compile the kernels, and say what took how long; return 1 if any failed, or Numba is not installed, else 0."""
    logging.getLogger("implicitsolve").disabled = True  # which would advise this command
    checks = _run(_report.list_compilations())
    if not checks:
        _say("nothing to compile: Numba is not installed, pip install 'implicitsolve[numba]'")
    return int(not all(check.ok for check in checks))


def _run(parts: Mapping[str, Callable[[], None]], *, quiet: bool = False) -> list[Check]:
    checks: list[Check] = []
    for name, part in parts.items():
        check = try_part(name, part)
        checks.append(check)
        outcome, reason = "ok" if check.ok else "FAILED", f": {check.reason}" if check.reason else ""
        if not quiet:
            _say(f"  {outcome:6} {check.seconds:5.1f} s  {name}{reason}")
    return checks


def _say(*lines: str) -> None:
    print(*lines, sep="\n", flush=True)  # noqa: T201


if __name__ == "__main__":
    status: int = 1
    try:
        status = main()
    except BrokenPipeError:  # the reader has gone; the interpreter's own flush must not fail again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(status)
