"""Names of the package: verbs for functions, a constant for each meaning; arguments and results have types."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from benchmarks import structure

PACKAGE = Path(__file__).parent.parent / "implicitsolve"

# Of irregular verbs; those of regular ones end in -ed. `solve` and `solution`, not `solved`: it says neither.
PARTICIPLE = "built|found|given|gone|grown|held|kept|known|left|made|put|sent|shown|split|stored|taken|[a-z]{3,}ed"
NO_PARTICIPLES = frozenset(
    {"checkpointed", "embed", "gathered", "lagged", "put", "split"}
)  # public names, and verbs of the same form
MOST_ANY = 1600
SAY_NOTHING = "Beyond|Unmoved|WholeNewton|Parts|Shown|Entering|_Rental|Kept|kept|KEPT|Words|Room|_Meeting|facts|_judge"


@cache
def trees() -> list[ast.Module]:
    return [ast.parse(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))]


def functions() -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for tree in trees():
        yield from (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def is_participle(name: str) -> bool:
    word = name.strip("_")
    return word not in NO_PARTICIPLES and re.fullmatch(PARTICIPLE, word) is not None


def defined_names() -> Iterator[str]:
    """Names of classes, functions, and constants at the top of modules."""
    for tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield node.name
        for node in tree.body:
            if isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                yield from (name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name))


def test_functions_are_not_named_by_a_participle_alone():
    assert not [node.name for node in functions() if is_participle(node.name)]


def test_no_name_that_says_nothing_is_defined():
    assert not [name for name in defined_names() if re.fullmatch(SAY_NOTHING, name)]


def test_no_two_numbers_have_one_name():
    found = Counter(name for tree in trees() for name in structure.constants(tree))
    assert not [name for name, count in found.items() if count > 1]


def test_any_does_not_stand_where_a_type_is_known():
    count = sum(isinstance(node, ast.Name) and node.id == "Any" for tree in trees() for node in ast.walk(tree))
    assert count <= MOST_ANY


def test_participles_are_recognized():
    assert all(is_participle(name) for name in ("solved", "_solved", "taken", "updated"))
    assert not any(is_participle(name) for name in ("solve", "seed", "need", "as_given", "checked_array", "split"))
