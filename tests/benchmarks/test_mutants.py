"""Mutation testing: what is changed in a file, what is left alone, and that every change is one."""

import ast
from textwrap import dedent

from benchmarks.mutants.changes import changes
from benchmarks.mutants.mapping import ROOT

SOURCE = dedent(
    '''
    """A module."""
    from numbers import Real

    LIMIT: "int" = 3

    class Rule(Protocol):
        def holds(self, x: float = 0.5) -> bool:
            """Whether."""
            return x < 1

    def check(x: Real, least: int = 0) -> Real:
        """Return x."""
        if not x >= least:
            raise ValueError(f"x must be at least {least + 1}")
        check_number("Rule", "x", x)
        values = [max(x, 2.0) * y for y in (x[0], x[-1])]
        values[1] += 1
        return values
    '''
)


def texts(source, kind=None):
    """Every change as the source that it leads to."""
    found = []
    for index, change in enumerate(changes(ast.parse(source))):
        tree = ast.parse(source)
        list(changes(tree))[index].apply()
        if kind is None or change.kind == kind:
            found.append(ast.unparse(ast.fix_missing_locations(tree)))
    return found


def changed_lines(kind):
    """The lines that differ, each after its change."""
    plain = ast.unparse(ast.parse(SOURCE)).splitlines()
    return [
        next(after.strip() for before, after in zip(plain, text.splitlines()) if before != after)
        for text in texts(SOURCE, kind)
    ]


def test_what_is_changed():
    assert changed_lines("comparison") == ["if not x > least:", "if not x < least:"]
    assert changed_lines("name") == ["values = [min(x, 2.0) * y for y in (x[0], x[-1])]"]
    assert changed_lines("return") == ["return"]
    assert changed_lines("operator") == ["values = [max(x, 2.0) / y for y in (x[0], x[-1])]", "values[1] -= 1"]
    assert changed_lines("deletion") == ["pass", "pass", "pass"]
    assert changed_lines("sign or not") == ["if x >= least:", "values = [max(x, 2.0) * y for y in (x[0], x[1])]"]


def test_constants_but_no_change_that_numpy_reads_as_none():
    lines = changed_lines("constant")
    assert lines[:2] == ["LIMIT: 'int' = 4", "LIMIT: 'int' = 2"]
    assert "values = [max(x, 2.0) * y for y in (x[1], x[-1])]" in lines
    assert "values = [max(x, 2.0) * y for y in (x[-1], x[-1])]" not in lines
    assert "values = [max(x, 2.0) * y for y in (x[0], x[-2])]" not in lines


def test_what_serves_messages_only_is_apart():
    assert len(changed_lines("message")) == 6
    assert not changed_lines("string")


def test_every_change_is_one_and_compiles():
    file = "implicitsolve/stopping.py"
    source = (ROOT / file).read_text(encoding="utf-8")
    found = texts(source)
    assert len(set(found)) > 0.9 * len(found) > 30  # x < 0 and x >= 0 may be reached in two ways
    assert ast.unparse(ast.parse(source)) not in found
    for text in found:
        compile(text, file, "exec")
