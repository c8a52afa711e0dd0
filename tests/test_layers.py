"""The import direction: core modules import downwards only, plug-ins import public names only.

The source files are parsed, not imported, so that an import inside a function counts as well. Imports under
``if TYPE_CHECKING:`` never run and do not count.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = "implicitsolve"
ROOT = Path(__file__).parent.parent / PACKAGE

PLUG_INS = ("adapters", "testing", "diagnostics", "backends", "torch", "jax")  # everything else is the core
FRONT = ("__main__", "_report")  # the command, which tries every part; nothing imports it
DEPENDENCIES = frozenset({"numpy", "scipy", "array_api_compat"})
# An optional package that a core module may import inside a function, when it is asked for.
ON_DEMAND = {
    "implicitsolve.monitor": frozenset({"tqdm"}),
    "implicitsolve.diagnostics._plots": frozenset({"matplotlib"}),
}
ASKS_FOR_THE_LIBRARY = "implicitsolve._namespace"
# Imports that close a cycle, so they wait inside a function until it is called: each with its reason.
CLOSES_A_CYCLE = {
    # A.to_scipy() is a method, and the converters build a LinearOperator.
    ("implicitsolve.operators._base", "implicitsolve.operators._convert"),
}


@dataclass(frozen=True)
class Import:
    """One import statement's target, in one module."""

    module: str  # the module that imports
    target: str  # the module that is imported, absolute
    name: str | None  # what is taken from it, None for `import target`
    line: int
    in_function: bool

    def __str__(self) -> str:
        what = f"import {self.target}" if self.name is None else f"from {self.target} import {self.name}"
        return f"{self.module}:{self.line}: {what}"


def module_name(path: Path) -> str:
    parts = (PACKAGE, *path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(module: str, is_package: bool, source: str) -> Iterator[Import]:
    """Every import of a module's source that can run."""

    def visit(node: ast.AST, in_function: bool) -> Iterator[Import]:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            children: list[ast.AST] = list(node.orelse)
        else:
            children = list(ast.iter_child_nodes(node))
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(module, alias.name, None, node.lineno, in_function)
        elif isinstance(node, ast.ImportFrom):
            parents = module.split(".") if is_package else module.split(".")[:-1]
            base = parents[: len(parents) - node.level + 1] if node.level else []
            target = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                yield Import(module, target, alias.name, node.lineno, in_function)
        in_function = in_function or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in children:
            yield from visit(child, in_function)

    return visit(ast.parse(source), False)


PATHS = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}
IMPORTS = {
    module: list(imports_of(module, path.name == "__init__.py", path.read_text(encoding="utf-8")))
    for module, path in PATHS.items()
}


def layer(module: str) -> str:
    """The plug-in that a module belongs to, or "core"; the package's own `__init__` and the command are above all."""
    part = module.split(".")[1] if module != PACKAGE else "__main__"
    if part in FRONT:
        return "front"
    return part if part in PLUG_INS else "core"


def resolved(item: Import) -> str:
    """Module that an import inside the package reaches: `from package import name` means the module behind `name`."""
    if item.name is not None and f"{item.target}.{item.name}" in PATHS:
        return f"{item.target}.{item.name}"
    if item.target == PACKAGE and item.name is not None:
        for shown in IMPORTS[PACKAGE]:
            if shown.name == item.name:
                return resolved(shown)
    return item.target


def is_inside(target: str) -> bool:
    return target == PACKAGE or target.startswith(f"{PACKAGE}.")


def inside(module: str) -> list[Import]:
    return [item for item in IMPORTS[module] if is_inside(item.target)]


def offences(items: list[Import]) -> str:
    return "\n".join(str(item) for item in items)


@pytest.mark.parametrize("module", PATHS)
def test_only_declared_dependencies_are_imported(module):
    if layer(module) in ("backends", "torch", "jax"):
        pytest.skip("a plug-in for an optional package")
    allowed = DEPENDENCIES | sys.stdlib_module_names
    on_demand = ON_DEMAND.get(module, frozenset())
    assert not offences(
        [
            item
            for item in IMPORTS[module]
            if not is_inside(item.target)
            and (top := item.target.split(".")[0]) not in allowed
            and not (top in on_demand and item.in_function)
        ]
    )


@pytest.mark.parametrize("module", [module for module in PATHS if layer(module) == "core"])
def test_core_imports_core_alone(module):
    # Not the front either: `from implicitsolve import x` in the core would import what is still being imported.
    assert not offences([item for item in inside(module) if layer(resolved(item)) != "core" or item.target == PACKAGE])


@pytest.mark.parametrize("module", [module for module in PATHS if layer(module) in PLUG_INS])
def test_plug_ins_do_not_import_each_other(module):
    own = layer(module)
    assert not offences([item for item in inside(module) if layer(resolved(item)) not in ("core", "front", own)])


@pytest.mark.parametrize("module", [module for module in PATHS if layer(module) == "adapters"])
def test_adapters_import_public_names_alone(module):
    own = f"{PACKAGE}.adapters"
    assert not offences(
        [
            item
            for item in inside(module)
            if not item.target.startswith(own)
            and any(part.startswith("_") for part in [*item.target.split("."), item.name or ""])
        ]
    )


@pytest.mark.parametrize("module", [module for module in PATHS if layer(module) == "core"])
def test_one_core_module_asks_which_library_an_array_belongs_to(module):
    if module != ASKS_FOR_THE_LIBRARY:
        assert not offences([item for item in IMPORTS[module] if item.target.split(".")[0] == "array_api_compat"])


def test_no_import_cycle():
    graph = {module: {target for item in inside(module) if (target := resolved(item)) != module} for module in PATHS}
    for module, target in CLOSES_A_CYCLE:
        graph[module].remove(target)  # fails when the import is gone: then it leaves the list too
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail("import cycle: " + " <- ".join(error.args[1]))


@pytest.mark.parametrize(("module", "target"), sorted(CLOSES_A_CYCLE))
def test_an_import_that_closes_a_cycle_waits_inside_a_function(module, target):
    assert not offences([item for item in inside(module) if resolved(item) == target and not item.in_function])


@pytest.mark.parametrize(
    ("module", "is_package", "source", "expected"),
    [
        ("implicitsolve.a.b", False, "from . import c", [("implicitsolve.a", "c", False)]),
        ("implicitsolve.a", True, "from . import c", [("implicitsolve.a", "c", False)]),
        ("implicitsolve.a.b", False, "from ..d import e", [("implicitsolve.d", "e", False)]),
        ("implicitsolve.a", False, "def f():\n    import numba", [("numba", None, True)]),
        ("implicitsolve.a", False, "if TYPE_CHECKING:\n    import cupy\nelse:\n    import os", [("os", None, False)]),
    ],
)
def test_the_parser_sees_what_python_would_import(module, is_package, source, expected):
    found = [(item.target, item.name, item.in_function) for item in imports_of(module, is_package, source)]
    assert found == expected
