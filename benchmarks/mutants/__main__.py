"""The command line: see the package's text."""

from __future__ import annotations

import argparse
import ast
import copy
import json
import os
import random
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from fnmatch import fnmatch
from itertools import islice
from pathlib import Path
from types import CodeType

from . import __doc__ as text
from .changes import Change, changes
from .mapping import CORE_FOLDERS, ROOT, Tests, map_tests
from .running import Mutant, run

CORE = [f"implicitsolve/{folder}/*.py" for folder in CORE_FOLDERS]
CORE += [f"implicitsolve/{name}.py" for name in ("_root", "problem", "result", "status", "stopping")]
LEAST = 8  # mutants of each file


def sample(patterns: Sequence[str], size: int, seed: int, messages: bool, tests: Tests) -> list[Mutant]:
    """About `size` mutants of all files together, of each its share, but `LEAST` if it has so many."""
    files = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "implicitsolve").rglob("*.py"))]
    places: dict[str, list[int]] = {}
    for file in files:
        if any(fnmatch(file, pattern) for pattern in patterns):
            found = enumerate(changes(ast.parse((ROOT / file).read_text())))
            places[file] = [index for index, change in found if (change.kind == "message") == messages]
    share = size / max(1, sum(map(len, places.values())))
    return [
        _mutant(file, index, tests)
        for file, indices in places.items()
        for index in sorted(
            random.Random(f"{seed} {file}").sample(indices, min(len(indices), max(LEAST, round(share * len(indices)))))
        )
    ]


def _mutant(file: str, index: int, tests: Tests) -> Mutant:
    tree = ast.parse((ROOT / file).read_text())
    change = next(islice(changes(tree), index, None))
    before, code = copy.deepcopy(change.place.statement), compile(tree, file, "exec")
    change.apply()
    lines, closures = change.lines(), _closures(compile(ast.fix_missing_locations(tree), file, "exec"))
    at_import = not change.place.in_function or tests.runs_at_import(file, lines)
    in_function = not at_import and closures == _closures(code)
    chosen = tests.of(file, lines, at_import)
    return Mutant(file, index, lines[0], change.kind, _difference(before, change), in_function, chosen)


def _difference(before: ast.stmt, change: Change) -> str:
    """The line that differs, near where it does, before and after."""
    old = ast.unparse(before).splitlines()
    if change.kind == "deletion":
        return f"delete {old[0]}"
    new = ast.unparse(change.place.statement).splitlines()
    one, other = next(((one, other) for one, other in zip(old, new) if one != other), (old[0], change.kind))
    at = next((i for i, (a, b) in enumerate(zip(one, other)) if a != b), 0)
    near = slice(max(0, at - 50), at + 50)
    return f"{one[near].strip()}  ->  {other[near].strip()}"


def _closures(code: CodeType) -> list[tuple[str, ...]]:
    """What the functions of a module close over: code can be exchanged only where it is the same."""
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return [code.co_freevars, *(names for one in inner for names in _closures(one))]


def report(mutants: Sequence[Mutant], file: Path | None) -> None:
    """A table of scores, for each file and each folder, on the terminal, and everything as JSON."""
    groups: dict[str, list[bool]] = defaultdict(list)
    for mutant in mutants:
        for name in (mutant.file, str(Path(mutant.file).parent), "all"):
            groups[name].append(mutant.outcome == "killed")
    for name, killed in sorted(groups.items()):
        print(f"{100 * sum(killed) / len(killed):5.1f} %  {sum(killed):4d} of {len(killed):4d}  {name}")
    if file:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps([{**asdict(mutant), "tests": len(mutant.tests)} for mutant in mutants], indent=1))


def main() -> None:
    """Map, or run and report."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    mapping = commands.add_parser("map")
    mapping.add_argument("paths", nargs="*")
    running = commands.add_parser("run")
    running.add_argument("--files", nargs="+", default=CORE, metavar="PATTERN")
    running.add_argument("--sample", type=int, default=700)
    running.add_argument("--seed", type=int, default=1)
    running.add_argument("--budget", type=float, default=10.0, help="seconds of tests for one mutant")
    running.add_argument("--messages", action="store_true", help="mutants of error messages, and of nothing else")
    running.add_argument("--report", type=Path)
    options = parser.parse_args()
    os.chdir(ROOT)
    if options.command == "map":
        sys.exit(map_tests(options.paths))
    mutants = sample(options.files, options.sample, options.seed, options.messages, Tests(options.budget))
    run(mutants)
    report(mutants, options.report)


if __name__ == "__main__":
    main()
