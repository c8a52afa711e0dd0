"""What the numeric constants of the methods are worth: evaluations with each of them halved and doubled.

Every number at the top of a module of `krylov`, `globalize`, `linearize`, `nonlinear`, `precondition`, `problem` and
`stopping` is varied alone, in its module and wherever it is imported. Counted are evaluations, and the systems that
are solved: the 23 problems of Burkardt, those of Moré, Garbow and Hillstrom from 1 and 10 times the standard start,
differential equations, sparse systems, and implicit layers, by "auto", and the first sets by Newton–Krylov too. A
constant that changes no count here bounds memory or time, or guards against what these problems do not have.

Usage::

    python -m benchmarks.constants                                          # minutes
    python -m benchmarks.constants --only krylov --write docs/performance/constants.md
"""

from __future__ import annotations

import argparse
import ast
import importlib
import io
import pkgutil
import sys
import tokenize
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

import implicitsolve as ims
from benchmarks.benchmarks.problems import burkardt_problems, classic_problems, pde_gallery
from benchmarks.robustness import started
from benchmarks.sparse_problems import sparse_gallery
from benchmarks.structure import is_number
from implicitsolve.adapters import gru_parameters, implicit_gru

FOLDERS = ("globalize", "krylov", "linearize", "nonlinear", "precondition", "problem", "stopping")
FACTORS = (0.5, 2.0)
MOST = 3000  # evaluations of one solve


@dataclass
class Constant:
    """A number at the top of a module, or one of several that are assigned together."""

    module: str
    name: str
    value: float
    meaning: str
    found: dict[float, tuple[int, int]] = field(default_factory=dict)  # by factor: evaluations, and systems solved

    @contextmanager
    def times(self, factor: float) -> Iterator[None]:
        """Vary it, in its module and in those that import it."""
        value = self.value * factor
        changed = max(1, round(value)) if isinstance(self.value, int) else value
        users = [sys.modules[name] for name in [self.module, *_importers(self.module, self.name)]]
        for user in users:
            setattr(user, self.name, changed)
        try:
            yield
        finally:
            for user in users:
                setattr(user, self.name, self.value)


def _modules() -> list[str]:
    return [info.name for info in pkgutil.walk_packages(ims.__path__, "implicitsolve.") if info.name in sys.modules]


def _source(module: str) -> str:
    path = sys.modules[module].__file__
    return Path(str(path)).read_text(encoding="utf-8")


@cache
def _imports() -> list[tuple[str, ast.ImportFrom]]:
    """Each statement that imports names, with the module that it is in."""
    return [
        (module, node)
        for module in _modules()
        for node in ast.walk(ast.parse(_source(module)))
        if isinstance(node, ast.ImportFrom)
    ]


def _importers(module: str, name: str) -> list[str]:
    """The modules that import a constant by its name."""
    return [
        other for other, node in _imports() if node.module == module and name in [alias.name for alias in node.names]
    ]


def constants(only: str | None = None) -> list[Constant]:
    """The constants of the methods, with the comments beside them."""
    found: list[Constant] = []
    for folder in FOLDERS:
        for module in (m for m in _modules() if m.split(".")[1] == folder):
            text = _source(module)
            comments = {
                token.start[0]: token.string.lstrip("# ")
                for token in tokenize.generate_tokens(io.StringIO(text).readline)
                if token.type == tokenize.COMMENT
            }
            for node in ast.parse(text).body:
                if isinstance(node, ast.Assign) and is_number(node.value):
                    targets = [n for target in node.targets for n in ast.walk(target) if isinstance(n, ast.Name)]
                    for target in targets:
                        value = getattr(importlib.import_module(module), target.id)
                        is_sought = only is None or only in f"{module}.{target.id}"
                        if is_sought and isinstance(value, int | float):
                            found.append(Constant(module, target.id, value, comments.get(node.lineno, "")))
    return found


def layers() -> Iterator[Callable[[], Any]]:
    """Implicit GRUs with recurrent weights of several sizes, by "auto"."""
    rng = np.random.default_rng(0)
    for size in (4, 24):
        params, inputs = gru_parameters(size, size, rng=rng), rng.standard_normal((3, 20, size))
        for weight in (1, 2, 4):
            scaled = {name: weight * value if name[0] == "U" else value for name, value in params.items()}
            yield partial(ims.root, implicit_gru(scaled, inputs), stop=ims.NonlinearStop(atol=1e-8))


def solves() -> list[Callable[[], Any]]:
    """All solves of one count."""
    classic = [(p, started(p, factor)) for p in classic_problems() for factor in (1, 10)]
    small = [(p, p.x0) for p in (*burkardt_problems(), *pde_gallery())]
    sparse = [(p, p.x0) for p in sparse_gallery("quick")]
    by_auto = [(*case, "auto") for case in (*classic, *small, *sparse)]
    by_krylov = [(*case, "newton-krylov") for case in (*classic[::2], *small)]

    def solve(p: Any, x0: Any, method: str) -> Any:
        stop = ims.NonlinearStop(atol=p.tolerance(), max_evaluations=MOST)
        return ims.root(p.residual, x0, method=method, stop=stop)

    return [*(partial(solve, *case) for case in (*by_auto, *by_krylov)), *layers()]


def counted(cases: list[Callable[[], Any]]) -> tuple[int, int]:
    """Evaluations in all, and systems solved."""
    results = []
    for case in cases:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            results.append(case())
    counts = [result.counts for result in results]
    return sum(c.residuals + c.jvps + c.vjps for c in counts), sum(int(np.sum(r.success)) for r in results)


def table(found: list[Constant], plain: tuple[int, int]) -> str:
    """Markdown: changes of evaluations in percent, and of systems solved."""
    lines = [
        "| constant | value | what it is | halved | doubled |",
        "| --- | --- | --- | --- | --- |",
    ]
    for constant in found:
        cells = []
        for factor in FACTORS:
            if factor not in constant.found:
                cells.append("impossible")
                continue
            evaluations, solved = constant.found[factor]
            change = 100 * (evaluations / plain[0] - 1)
            cells.append("none" if evaluations == plain[0] else f"{change:+.1f} %")
            cells[-1] += "" if solved == plain[1] else f", {solved - plain[1]:+d} solved"
        module = constant.module.removeprefix("implicitsolve.").replace(".", "/")
        meaning = constant.meaning.replace("|", "\\|")
        lines.append(f"| `{module}.{constant.name}` | {constant.value:g} | {meaning} | {cells[0]} | {cells[1]} |")
    return "\n".join(lines)


PAGE = """# What the constants are worth

Each number that the methods decide by was halved and doubled, alone, and the evaluations of all solves counted again:
{solves} solves of small, sparse and hard systems and of layers, {evaluations} evaluations, {solved} systems solved.
A constant that changes no count here bounds memory or time, or guards against what these problems do not have. Sources
of those that are published stand beside them in the code. This page is written by `python -m benchmarks.constants`.

{table}
"""


def main(arguments: list[str] | None = None) -> None:
    """Vary the constants, and print or write the table."""
    parser = argparse.ArgumentParser(description="Evaluations with each constant halved and doubled.")
    parser.add_argument("--only", help="constants whose names, after those of their modules, contain this")
    parser.add_argument("--write", type=Path, help="a page for the docs")
    options = parser.parse_args(arguments)
    cases = solves()
    plain, found = counted(cases), constants(options.only)
    for constant in found:
        for factor in FACTORS:
            with constant.times(factor):
                try:
                    constant.found[factor] = counted(cases)
                except (ValueError, IndexError, TypeError) as error:  # of arrays that such a number does not suit
                    print(f"{constant.module}.{constant.name} times {factor}: {error!r}", file=sys.stderr)
        print(table([constant], plain).splitlines()[-1], flush=True)
    if options.write:
        page = PAGE.format(solves=len(cases), evaluations=f"{plain[0]:,}", solved=plain[1], table=table(found, plain))
        options.write.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
