"""Deprecations warn as they say, and none outlives its date."""

from __future__ import annotations

import ast
import re
import warnings
from pathlib import Path
from types import ModuleType

import pytest

import implicitsolve
from implicitsolve._deprecation import deprecated_argument, deprecated_function

PACKAGE = Path(implicitsolve.__file__).parent
KINDS = {"deprecated_function", "deprecated_argument", "deprecated_name"}


def release(version: str) -> tuple[int, ...]:
    """Numbers of a version: of 0.10.2 and 0.10.2rc1 (0, 10, 2), of 0.10 (0, 10, 0)."""
    numbers = [int(part) for part in re.match(r"\d+(?:\.\d+)*", version).group().split(".")]
    return tuple(numbers + [0] * (3 - len(numbers)))


def deprecations(source: str) -> list[dict[str, str]]:
    """What every deprecation in a source states; the source is parsed, so that modules loaded late count too."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    named = [call for call in calls if ast.unparse(call.func).rpartition(".")[2] in KINDS]
    return [{word.arg: ast.literal_eval(word.value) for word in call.keywords if word.arg} for call in named]


def overdue(source: str, version: str) -> list[str]:
    """What is wrong with a source's deprecations at a version of the package."""
    found = []
    for stated in deprecations(source):
        if set(stated) != {"since", "remove_in", "instead"} or not stated["instead"]:
            found.append(f"must state since, remove_in and instead: {stated}")
        elif release(version) >= release(stated["remove_in"]):
            found.append(f"was to be removed in {stated['remove_in']}: {stated}")
        elif not release(stated["since"]) < release(stated["remove_in"]):
            found.append(f"is to be removed before it warns: {stated}")
    return found


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_deprecation_is_overdue(path):
    if path.name != "_deprecation.py":
        assert overdue(path.read_text(encoding="utf-8"), implicitsolve.__version__) == []


STATED = 'since="0.1", remove_in="0.3", instead="`new`"'
FORMS = {
    "function": f"@deprecated_function({STATED})\ndef old(): ...",
    "argument": f"class A:\n    @deprecated_argument('x', {STATED})\n    def f(self, x=None): ...",
    "name": f"def __getattr__(name):\n    if name == 'old':\n        return deprecated_name(name, new, {STATED})",
    "qualified": f"from implicitsolve import _deprecation\n@_deprecation.deprecated_function({STATED})\ndef old(): ...",
}


@pytest.mark.parametrize("source", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize(
    ("version", "is_overdue"),
    [
        ("0.1.0", False),
        ("0.2.9", False),
        ("0.3.0rc1", True),
        ("0.3", True),
        ("0.3.0", True),
        ("0.10.0", True),
        ("1.0", True),
    ],
)
def test_the_check_finds_each_form_when_its_time_has_come(source, version, is_overdue):
    assert bool(overdue(source, version)) is is_overdue


@pytest.mark.parametrize(
    "stated",
    [
        'since="0.1", remove_in="0.3"',
        'remove_in="9", instead="x"',
        'since="0.3", remove_in="0.3", instead="x"',
        'since="0.1", remove_in="0.3", instead=""',
    ],
)
def test_a_deprecation_that_does_not_say_all_is_an_offence(stated):
    assert overdue(f"@deprecated_function({stated})\ndef old(): ...", "0.0.1")


def test_dates_that_are_not_written_out_are_an_error():
    with pytest.raises(ValueError, match="malformed"):
        overdue("@deprecated_function(since=NOW, remove_in=LATER, instead='x')\ndef old(): ...", "0.1.0")


# ----------------------------------------------------------------------------------------------------- what users see


def expected(what):
    return rf"^`{what}` is deprecated since 0.1 and will be removed in 0.3: use `new`$"


def test_a_function_warns_and_works():
    @deprecated_function(since="0.1", remove_in="0.3", instead="`new`")
    def old(x, *, y):
        """What it did."""
        return x + y

    with pytest.warns(DeprecationWarning, match=expected("old")) as caught:
        assert old(1, y=2) == 3
    assert caught[0].filename == __file__
    assert (old.__name__, old.__doc__) == ("old", "What it did.")


def test_an_argument_warns_where_it_is_given():
    @deprecated_argument("y", since="0.1", remove_in="0.3", instead="`new`")
    def function(x, *, y=0):
        return x + y

    with pytest.warns(DeprecationWarning, match=expected(r"function\(y=...\)")) as caught:
        assert function(1, y=2) == 3
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert function(1) == 1


MODULE = """
from implicitsolve._deprecation import deprecated_name

def __getattr__(name):
    return deprecated_name(name, 5, since="0.1", remove_in="0.3", instead="`new`")
"""


def test_a_name_warns_where_it_is_taken():
    module = ModuleType("a_module")
    exec(compile(MODULE, "a_module.py", "exec"), vars(module))
    with pytest.warns(DeprecationWarning, match=expected("old")) as caught:
        assert module.old == 5
    assert caught[0].filename == __file__
