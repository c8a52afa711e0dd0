"""Every expression on docs/reference/migration.md that names this package is Python that it accepts."""

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import implicitsolve as ims

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "migration.md").read_text(encoding="utf-8")
PROSE = re.sub(r"^```.*?^```$", "", PAGE, flags=re.MULTILINE | re.DOTALL)
SPANS = sorted({span for span in re.findall(r"`([^`\n]+)`", PROSE) if "ims." in span and "import " not in span})


def dotted(node: ast.AST) -> str:
    """The name that a chain of attributes spells, or an empty string."""
    if isinstance(node, ast.Name):
        return node.id
    owner = dotted(node.value) if isinstance(node, ast.Attribute) else ""
    return f"{owner}.{node.attr}" if owner else ""  # type: ignore[attr-defined]


def found(name: str) -> Any:
    """What a name that begins with `ims` stands for."""
    value: Any = ims
    for part in name.split(".")[1:]:
        value = getattr(value, part)
    return value


@pytest.mark.parametrize("span", SPANS)
def test_a_name_exists_and_takes_these_arguments(span: str) -> None:
    if "ims.torch" in span:
        pytest.importorskip("implicitsolve.torch", reason="needs torch", exc_type=ImportError)
    tree = ast.parse(span, mode="eval")
    names = [name for node in ast.walk(tree) if (name := dotted(node)).startswith("ims.")]
    assert names
    for name in names:
        found(name)
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        if dotted(call.func).startswith("ims."):
            keywords: dict[str, Any] = {keyword.arg: None for keyword in call.keywords if keyword.arg}
            inspect.signature(found(dotted(call.func))).bind(*call.args, **keywords)


def is_closed(span: str) -> bool:
    """Whether an expression makes settings out of numbers and names of this package alone."""
    tree = ast.parse(span, mode="eval")
    free = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} - {"ims"}
    is_settings = isinstance(tree.body, ast.Call) and dotted(tree.body.func).split(".")[-1][:1].isupper()
    return is_settings and not free and "ims.torch" not in span


CLOSED = [span for span in SPANS if is_closed(span)]


@pytest.mark.parametrize("span", CLOSED)
def test_settings_have_valid_values(span: str) -> None:
    eval(span, {"ims": ims})


def test_the_expressions_are_found() -> None:
    assert "ims.NonlinearStop(max_iterations=50)" in CLOSED
    assert len(SPANS) > 100
    assert len(CLOSED) > 60


@pytest.mark.parametrize("package", ["newton_krylov", "root and fixed_point", "KINSOL", "SNES", "jaxopt", "torchdeq"])
def test_every_package_has_a_table(package: str) -> None:
    section = re.split(r"^#+ .*" + package + r".*\n", PAGE, maxsplit=1, flags=re.MULTILINE)[1]
    assert re.search(r"^\| --- ", re.split(r"^#", section, maxsplit=1, flags=re.MULTILINE)[0], re.MULTILINE)


def test_every_keyword_of_scipy_is_in_its_table() -> None:
    from scipy.optimize import newton_krylov

    table = PAGE.split("### newton_krylov")[1].split("```python")[0]
    keywords = [name for name in inspect.signature(newton_krylov).parameters if name != "kw"]
    assert [name for name in keywords if not re.search(rf"`{name}[`=]", table)] == []


def test_the_statuses_are_those_of_the_package() -> None:
    named = set(re.findall(r"`ims\.Status\.(\w+)`", PAGE))
    assert named <= set(ims.Status.__members__)
    assert {"CONVERGED", "STAGNATED", "LINE_SEARCH_FAILED", "LINEAR_SOLVE_FAILED", "ITERATION_LIMIT"} <= named
