"""The order of the folders: a module imports only from what stands above its own folder, and nothing in a circle.

The source files are parsed, not imported, so that an import inside a function counts. One under ``if TYPE_CHECKING:``
counts too: what the types of a module need is part of reading it.
"""

import ast
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = "implicitsolve"
ROOT = Path(__file__).parent.parent / PACKAGE

# The way of a solve. Folders on one line are siblings in no order of their own, which still may not form a circle.
CORE = """
_typing
_arrays
status errors
kernels
_record
stopping
_summary
structure
result
monitor
operators
_parameters
problem _scipy_keywords
linearize
krylov
direct
precondition
globalize
elimination
_linear_solve
nonlinear
_root
derivatives
drivers
compat
"""
ORDER = {name: line for line, names in enumerate(CORE.split("\n")) for name in names.split()}
# Plug-ins use the core, and of one another only what is named here.
PLUG_INS = {
    "adapters": (),
    "branches": ("diagnostics",),  # their pictures
    "backends": ("adapters",),  # the kernels that it declares
    "testing": (),
    "diagnostics": ("testing",),
    "torch": ("adapters",),  # their equations
    "jax": ("adapters",),
    "petsc": (),
    "tracing": (),
}
FRONT = ("__main__", "_report")  # the command, which tries every part; nothing imports it
# Folders that import an optional package, and packages that a module imports inside a function, when asked for.
FOR_AN_OPTIONAL_PACKAGE = ("backends", "torch", "jax", "petsc", "tracing")
DEPENDENCIES = frozenset({"numpy", "scipy", "array_api_compat"})
ON_DEMAND = {
    "implicitsolve.diagnostics._plots": frozenset({"matplotlib"}),
}
ASKS_FOR_THE_LIBRARY = "implicitsolve._arrays.namespace"
# Imports that close a circle. The aim is an empty set; each entry says how it will go.
CLOSES_A_CIRCLE = {
    # The operands of A + B and A @ B are converted to a LinearOperator: inside a function until it is called.
    ("implicitsolve.operators._base", "implicitsolve.operators._convert"),
}
# Imports against the order, as (folder, folder). The aim is an empty set.
AGAINST_THE_ORDER: set[tuple[str, str]] = set()


@dataclass(frozen=True)
class Import:
    """One import statement's target, in one module."""

    module: str  # the module that imports
    target: str  # the module that is imported, absolute
    name: str | None  # what is taken from it, None for `import target`
    line: int
    in_function: bool
    for_types: bool  # under `if TYPE_CHECKING:`

    def __str__(self) -> str:
        what = f"import {self.target}" if self.name is None else f"from {self.target} import {self.name}"
        return f"{self.module}:{self.line}: {what}"


def module_name(path: Path) -> str:
    parts = (PACKAGE, *path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(module: str, is_package: bool, source: str) -> Iterator[Import]:
    """Every import in a module's source."""

    def visit(node: ast.AST, in_function: bool, for_types: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(module, alias.name, None, node.lineno, in_function, for_types)
        elif isinstance(node, ast.ImportFrom):
            parents = module.split(".") if is_package else module.split(".")[:-1]
            base = parents[: len(parents) - node.level + 1] if node.level else []
            target = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                yield Import(module, target, alias.name, node.lineno, in_function, for_types)
        in_function = in_function or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        guarded = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for child in ast.iter_child_nodes(node):
            in_body = guarded and child in node.body
            yield from visit(child, in_function, for_types or in_body)

    return visit(ast.parse(source), False, False)


PATHS = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}


@cache
def imports() -> dict[str, list[Import]]:
    """Those of every module."""
    return {
        module: list(imports_of(module, path.name == "__init__.py", path.read_text(encoding="utf-8")))
        for module, path in PATHS.items()
    }


def folder(module: str) -> str:
    """The folder below the package that a module belongs to, or the root's module itself."""
    return module.split(".")[1] if module != PACKAGE else PACKAGE


def resolved(item: Import) -> str:
    """Module that an import inside the package reaches: `from package import name` means the module behind `name`."""
    if item.name is not None and f"{item.target}.{item.name}" in PATHS:
        return f"{item.target}.{item.name}"
    if item.target == PACKAGE and item.name is not None:
        for shown in imports()[PACKAGE]:
            if shown.name == item.name and not shown.for_types:
                return resolved(shown)
    return item.target


def is_inside(target: str) -> bool:
    return target == PACKAGE or target.startswith(f"{PACKAGE}.")


def offences(is_wrong: Callable[[Import], bool], *, inside: bool = True) -> str:
    """The imports, of the package's own modules or of others, that are wrong: one on a line, empty where none is."""
    items = [item for found in imports().values() for item in found if is_inside(item.target) == inside]
    return "\n".join(str(item) for item in items if is_wrong(item))


def test_every_folder_has_its_place():
    placed = {*ORDER, *PLUG_INS, *FRONT, PACKAGE} | {name for pair in AGAINST_THE_ORDER for name in pair}
    assert not {folder(module) for module in PATHS} - placed


def test_only_declared_dependencies_are_imported():
    allowed = DEPENDENCIES | sys.stdlib_module_names

    def is_wrong(item: Import) -> bool:
        top = item.target.split(".")[0]
        on_demand = top in ON_DEMAND.get(item.module, ()) and (item.in_function or item.for_types)
        return folder(item.module) not in FOR_AN_OPTIONAL_PACKAGE and top not in allowed and not on_demand

    assert not offences(is_wrong, inside=False)


def test_the_core_imports_only_earlier_folders():
    def is_wrong(item: Import) -> bool:
        own, other = folder(item.module), folder(resolved(item))
        if own not in ORDER or own == other or (own, other) in AGAINST_THE_ORDER:
            return False
        # Not the package's front either: `from implicitsolve import x` would import what is still being imported.
        return item.target == PACKAGE or other not in ORDER or ORDER[other] > ORDER[own]

    assert not offences(is_wrong)


def test_plug_ins_do_not_import_one_another():
    def is_wrong(item: Import) -> bool:
        own, other = folder(item.module), folder(resolved(item))
        allowed = {*ORDER, *FRONT, PACKAGE, own, *PLUG_INS.get(own, ())}
        return own in PLUG_INS and other not in allowed and (own, other) not in AGAINST_THE_ORDER

    assert not offences(is_wrong)


def test_adapters_import_public_names_and_words_for_arrays_alone():
    def is_wrong(item: Import) -> bool:
        if folder(item.module) != "adapters" or folder(item.target) in ("adapters", "_arrays", "_typing"):
            return False
        return any(part.startswith("_") for part in [*item.target.split("."), item.name or ""])

    assert not offences(is_wrong)


def test_one_core_module_asks_which_library_an_array_belongs_to():
    def is_wrong(item: Import) -> bool:
        is_core = folder(item.module) in ORDER
        return is_core and item.module != ASKS_FOR_THE_LIBRARY and item.target.split(".")[0] == "array_api_compat"

    assert not offences(is_wrong, inside=False)


def edges() -> dict[str, set[str]]:
    """Modules that each one imports, but for what the package's own front lists."""
    return {
        module: {
            target
            for item in imports()[module]
            if is_inside(item.target) and not (module == PACKAGE and item.for_types)
            if (target := resolved(item)) != module
        }
        for module in PATHS
    }


def test_nothing_is_imported_in_a_circle():
    graph = edges()
    for module, target in CLOSES_A_CIRCLE:
        graph[module].discard(target)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail("import circle: " + " <- ".join(error.args[1]))


def test_what_closes_a_circle_waits():
    def is_wrong(item: Import) -> bool:
        return (item.module, resolved(item)) in CLOSES_A_CIRCLE and not (item.in_function or item.for_types)

    assert not offences(is_wrong)


@pytest.mark.parametrize(
    ("module", "is_package", "source", "expected"),
    [
        ("implicitsolve.a.b", False, "from . import c", ("implicitsolve.a", "c", False, False)),
        ("implicitsolve.a", True, "from . import c", ("implicitsolve.a", "c", False, False)),
        ("implicitsolve.a.b", False, "from ..d import e", ("implicitsolve.d", "e", False, False)),
        ("implicitsolve.a", False, "def f():\n    import numba", ("numba", None, True, False)),
        ("implicitsolve.a", False, "if TYPE_CHECKING:\n    import cupy", ("cupy", None, False, True)),
        ("implicitsolve.a", False, "if not TYPE_CHECKING:\n    pass\nelse:\n    import os", ("os", None, False, False)),
    ],
)
def test_the_parser_sees_what_python_would_import(module, is_package, source, expected):
    (item,) = imports_of(module, is_package, source)
    assert (item.target, item.name, item.in_function, item.for_types) == expected
