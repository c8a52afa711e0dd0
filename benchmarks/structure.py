"""How much there is to read: the package's size, and the way of one solve through it.

Counted are the Python files below ``implicitsolve`` and their lines, the lines of the tests, the modules at the root,
the longest file, the longest function (without its docstring), the largest cyclomatic complexity, how many of each
exceed the limits, module-level numeric constants, annotations ``: Any``, and calls of `getattr` and `hasattr`.
Complexity is McCabe's: one more than the branches, loops, comprehensions, handlers, cases, conditional expressions, and
further operands of `and` and `or`. A walk is a second, warm solve under `sys.setprofile`: the files of the package that
it enters, its functions and its Python calls.

Each figure is compared with ``structure.json``. One with a limit fails above it; while the stored value is above the
limit, the figure may not grow. One without a limit may exceed the stored value by 2 %, and by 2. Less always passes.

Usage::

    python benchmarks/structure.py           # table on the terminal; exit status 1 where a figure fails
    python benchmarks/structure.py --write   # store the figures of this tree
    python benchmarks/structure.py --walk newton_krylov         # that walk, function by function
    python benchmarks/structure.py --above   # each file and function above its limit
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))  # this tree's package, whatever is installed

import numpy as np

import implicitsolve as ims
from implicitsolve.adapters import implicit_gru

PACKAGE = Path(ims.__file__).parent
STORED = Path(__file__).with_name("structure.json")
TESTS = Path(__file__).parent.parent / "tests"
LIMITS = {"file": 350, "function": 60, "complexity": 15}  # lines, lines, decisions and one
SLACK = 0.02


# ---------------------------------------------------------------------------------------------------------------- size


def is_number(node: ast.expr) -> bool:
    """Whether an expression is a number, or arithmetic of numbers alone."""
    match node:
        case ast.Constant(value=value):
            return isinstance(value, int | float | complex) and not isinstance(value, bool)
        case ast.UnaryOp(operand=operand):
            return is_number(operand)
        case ast.BinOp(left=left, right=right):
            return is_number(left) and is_number(right)
        case ast.Tuple(elts=elements):
            return bool(elements) and all(map(is_number, elements))
    return False


def constants(tree: ast.Module) -> Iterator[str]:
    """Names at the top of a module that are bound to numbers."""
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None and is_number(node.value):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                names = target.elts if isinstance(target, ast.Tuple) else [target]
                yield from (name.id for name in names if isinstance(name, ast.Name))


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Qualified names and definitions of all functions, nested ones too."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + node.name, node
        named = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        yield from functions(node, f"{prefix}{node.name}." if named else prefix)


def length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its decorators and docstring."""
    first = function.body[0]
    lines = function.end_lineno - function.lineno + 1
    return lines - (first.end_lineno - first.lineno + 1) if ast.get_docstring(function, clean=False) else lines


def complexity(function: ast.AST) -> int:
    """McCabe's cyclomatic complexity; what is defined inside counts too."""
    decisions = ast.If | ast.IfExp | ast.For | ast.While | ast.comprehension | ast.ExceptHandler | ast.match_case
    nodes = list(ast.walk(function))
    operands = sum(len(node.values) - 1 for node in nodes if isinstance(node, ast.BoolOp))
    return 1 + operands + sum(isinstance(node, decisions) for node in nodes)


def measures() -> dict[str, dict[str, int]]:
    """Lines of each file, lines and complexity of each function."""
    found: dict[str, dict[str, int]] = {kind: {} for kind in LIMITS}
    for path in sorted(PACKAGE.rglob("*.py")):
        file, text = str(path.relative_to(PACKAGE)), path.read_text(encoding="utf-8")
        found["file"][file] = len(text.splitlines())
        for name, function in functions(ast.parse(text)):
            found["function"][f"{file}: {name}"] = length(function)
            found["complexity"][f"{file}: {name}"] = complexity(function)
    return found


def above(found: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    """What exceeds its limit, largest first."""
    return {
        kind: {name: size for name, size in sorted(sizes.items(), key=lambda item: -item[1]) if size > LIMITS[kind]}
        for kind, sizes in found.items()
    }


def sizes() -> dict[str, int]:
    """Figures of the source files."""
    sources = {path: path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py"))}
    lines = sum(len(text.splitlines()) for text in sources.values())
    tests = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in TESTS.rglob("*.py"))
    trees = [ast.parse(text) for text in sources.values()]
    calls = [node.func for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)]
    names = [node.id for node in calls if isinstance(node, ast.Name)]
    found = measures()
    return {
        "lines": lines,
        "lines of tests": tests,
        "files": len(sources),
        "modules at the root": sum(path.parent == PACKAGE for path in sources),
        **{f"largest {kind}": max(values.values()) for kind, values in found.items()},
        **{f"above {LIMITS[kind]}: {kind}": len(values) for kind, values in above(found).items()},
        "numeric constants": sum(1 for tree in trees for _ in constants(tree)),
        ": Any": sum(text.count(": Any") for text in sources.values()),
        "getattr and hasattr": sum(name in ("getattr", "hasattr") for name in names),
    }


# ---------------------------------------------------------------------------------------------------------------- walks


@dataclass
class Walk:
    """What a call enters: `functions` are (file, qualified name) with their number of calls, first called first."""

    functions: dict[tuple[str, str], int] = field(default_factory=dict)

    def enter(self, frame: FrameType, event: str, argument: Any) -> None:
        """Count a call, as `sys.setprofile` reports it, if it is one of the package's functions."""
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(PACKAGE)):
            key = str(Path(code.co_filename).relative_to(PACKAGE)), code.co_qualname
            self.functions[key] = self.functions.get(key, 0) + 1

    def figures(self) -> dict[str, int]:
        """Files, functions and calls."""
        files = {file for file, _ in self.functions}
        return {"files": len(files), "functions": len(self.functions), "calls": sum(self.functions.values())}


def walk(solve: Callable[[], object]) -> Walk:
    """The walk of a second call: what is imported, compiled or kept by the first is not counted."""
    solve()
    found = Walk()
    sys.setprofile(found.enter)
    try:
        solve()
    finally:
        sys.setprofile(None)
    return found


def bratu(u: Any) -> Any:
    """Residual of u'' + exp(u) = 0 with u = 0 at both ends."""
    return np.diff(u, n=2, prepend=0.0, append=0.0) * (u.size + 1) ** 2 + np.exp(u)


def gru_layer(systems: int = 2, blocks: int = 6, size: int = 4, inputs: int = 3) -> ims.Problem:
    """An implicit GRU layer with weights of a fixed seed."""
    rng = np.random.default_rng(0)
    shapes = {"W": (size, inputs), "U": (size, size), "b": (size,)}
    params = {
        kind + gate: 0.3 * rng.standard_normal(shape)
        for gate in ("", "z", "r", "p", "n")
        for kind, shape in shapes.items()
    }
    return implicit_gru(params, rng.standard_normal((systems, blocks, inputs)))


def solve_plain() -> object:
    """A plain `newton_krylov` on 20 unknowns: dense Newton."""
    return ims.newton_krylov(bratu, np.zeros(20))


def solve_sparse() -> object:
    """A plain `newton_krylov` on 200 unknowns: the sparsity is detected, and J factored."""
    return ims.newton_krylov(bratu, np.zeros(200))


def solve_matrix_free() -> object:
    """The same by Krylov methods alone."""
    return ims.newton_krylov(bratu, np.zeros(200), structure="none")


def solve_gru(layer: list[ims.Problem] = []) -> object:  # noqa: B006 (one layer for both calls)
    """`root` on the layer."""
    if not layer:
        layer.append(gru_layer())
    return ims.root(layer[0])


WALKS: dict[str, Callable[[], object]] = {
    "newton_krylov": solve_plain,
    "sparse": solve_sparse,
    "matrix-free": solve_matrix_free,
    "implicit_gru": solve_gru,
}


# ------------------------------------------------------------------------------------------------------- the comparison


def figures() -> dict[str, int]:
    """All figures of this tree."""
    walks = {f"{name}: {what}": count for name in WALKS for what, count in walk(WALKS[name]).figures().items()}
    return {**sizes(), **walks}


def most(stored: int, limit: int | None) -> int:
    """Largest value of a figure that passes."""
    if limit is None:
        return stored + max(2, int(SLACK * stored))
    return max(stored, limit)


def failures(now: dict[str, int], stored: dict[str, dict[str, int]]) -> list[str]:
    """One line for each figure that fails."""
    return [
        f"{name}: {count}, at most {allowed}"
        for name, count in now.items()
        if name in stored and count > (allowed := most(stored[name]["stored"], stored[name].get("limit")))
    ]


def table(now: dict[str, int], stored: dict[str, dict[str, int]]) -> str:
    """The figures beside the stored ones and the limits."""
    width = max(map(len, now))
    rows = [f"{'':{width}} {'now':>8} {'stored':>8} {'limit':>8}"]
    for name, count in now.items():
        known = stored.get(name, {})
        rows.append(f"{name:{width}} {count:8d} {known.get('stored', ''):>8} {known.get('limit', ''):>8}")
    return "\n".join(rows)


def main(arguments: list[str] | None = None) -> int:
    """Print, compare and, with --write, store the figures."""
    parser = argparse.ArgumentParser(description="Figures of the package's size and of the way of one solve.")
    parser.add_argument("--write", action="store_true", help="store the figures of this tree")
    parser.add_argument("--walk", choices=WALKS, help="print one walk alone, function by function")
    parser.add_argument("--above", action="store_true", help="print the files and functions above their limits")
    options = parser.parse_args(arguments)
    if options.above:
        for kind, values in above(measures()).items():
            print(*(f"{size:5d}  {kind}  {name}" for name, size in values.items()), sep="\n")
        return 0
    if options.walk:
        for (file, name), count in walk(WALKS[options.walk]).functions.items():
            print(f"{count:5d}  {file}: {name}")
        return 0
    now, stored = figures(), json.loads(STORED.read_text(encoding="utf-8"))
    print(table(now, stored))
    if options.write:
        for name, count in now.items():
            stored.setdefault(name, {})["stored"] = count
        lines = [f"  {json.dumps(name)}: {json.dumps(known)}" for name, known in stored.items()]
        STORED.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
        return 0
    failed = failures(now, stored)
    for line in failed:
        print(f"FAILED {line}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
