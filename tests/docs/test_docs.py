"""The Python of the README and of every page of the docs runs as written, and every public name has a page."""

import contextlib
import functools
import re
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import implicitsolve

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
COUNT = re.compile(r"^(\w.*\S)  # (\d+(?=[ ,:;]|$).*)", re.MULTILINE)
NEEDS = re.compile(r"^<!-- needs: (\w+) -->$", re.MULTILINE)

# What the fragments of a page take as given: they are passages of the programs that the pages are about.
GIVEN = {
    "docs/examples/brusselator.md": """
        from brusselator import Brusselator
        model, B = Brusselator(cells=40), 3.5
        guess = np.stack([model.stripes(mode, B) for mode in (8, 9)])""",
    "docs/examples/business_cycle.md": """
        from business_cycle import Economy
        economy = Economy()
        log_z = economy.productivity(np.array([0.1, -0.1]), 50)
        start = economy.start(log_z)""",
    "docs/examples/distributed.md": """
        from distributed_bvp import f
        from implicitsolve.petsc import Mesh
        points = 101
        h = 1 / (points - 1)""",
    "docs/examples/trajectory_smoother.md": """
        from trajectory_smoother import Flight
        flight = Flight.draw(20, np.random.default_rng(0))
        unit_columns = np.eye(80)[:, 40:44]""",
    "docs/examples/two_point_bvp.md": """
        from two_point_bvp import bratu
        bvp = bratu("lower")
        x = bvp.mesh(100)
        h, start, (left, right) = np.diff(x)[:, None], bvp.start(x), bvp.ends""",
}
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", *sorted(DOCS.rglob("*.md")))
}


WITH_CODE = {page for page, text in PAGES.items() if BLOCK.search(text)} - {"README.md"}  # whose blocks run one by one
ON_GPU = {page for page in WITH_CODE if "cupy" in NEEDS.findall(PAGES[page])}


def counted(block: str) -> str:
    """The block, whose expressions followed by a number are compared with it; rounding may move long counts."""

    def compared(line: re.Match[str]) -> str:
        try:
            compile(line[1], "", "eval")
        except SyntaxError:
            return line[0]
        return f"compare({line[1]!r}, {line[1]}, {line[2]!r})"

    return COUNT.sub(compared, block)


def compare(expression: str, value: Any, comment: str) -> None:
    for found, stated in zip(np.ravel(value), map(int, re.findall(r"\d+", comment)), strict=False):
        if found is not None:
            assert abs(found - stated) <= 0.1 * stated, f"{expression} is {found}, the page says {comment}"


@functools.cache
def run(page: str) -> dict[str, Any]:
    """Run a page from top to bottom in an empty folder, and return what it leaves."""
    names: dict[str, Any] = {"__name__": "__main__", "compare": compare}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        if page in GIVEN:
            given = "\n".join(line.strip() for line in GIVEN[page].splitlines())
            exec(f"import numpy as np\nimport implicitsolve as ims\n{given}", names)
        for number, block in enumerate(BLOCK.findall(PAGES[page]), 1):
            exec(compile(counted(block), f"{page}, block {number}", "exec", dont_inherit=True), names)
    return names


@pytest.mark.parametrize("page", sorted(WITH_CODE - ON_GPU))
def test_the_page_runs(page: str) -> None:
    for package in NEEDS.findall(PAGES[page]):
        pytest.importorskip(package, exc_type=ImportError)
    run(page)


@pytest.mark.parametrize("page", sorted(ON_GPU))
@pytest.mark.usefixtures("device", "cudss")
def test_the_page_runs_on_a_gpu(page: str) -> None:
    run(page)


@pytest.mark.parametrize("block", BLOCK.findall(PAGES["README.md"]))
def test_a_block_of_the_readme_runs_alone(block: str) -> None:
    exec(compile(block, "README.md", "exec", dont_inherit=True), {})


def test_the_readme_says_the_right_answers() -> None:
    names: dict[str, Any] = {}
    block = next(block for block in BLOCK.findall(PAGES["README.md"]) if "push_forward" in block)
    exec(compile(block, "README.md", "exec", dont_inherit=True), names)
    np.testing.assert_allclose(names["result"].x, [[0.0], [1.0], [2.0]], atol=1e-9)
    assert names["result"].success.all()
    slopes = [[1.0], [1 / 4], [1 / 13]]
    np.testing.assert_allclose(names["reverse"].gradients["a"], slopes, rtol=1e-5)
    np.testing.assert_allclose(names["forward"].tangent, slopes, rtol=1e-5)


def test_the_page_on_torch_trains() -> None:
    pytest.importorskip("torch", exc_type=ImportError)
    names = run("docs/how_to/torch.md")
    assert names["loss"].isfinite()
    assert names["result"].success.all()
    assert all(x.grad is not None for x in (names["u"], names["net"].weight, names["net"].bias))


def test_the_start_page_s_numbers_are_those_of_the_performance_page() -> None:
    table = PAGES["docs/index.md"].split("`implicitsolve.root` | ratio |\n")[1].split("\n\n")[0]
    rows = [line.split(" | ")[1:] for line in table.splitlines()][1:]
    numbers = {cell for row in rows for cell in re.findall(r"[\d.]+", " ".join(row))}
    assert len(rows) == 5
    assert not {number for number in numbers if f"| {number} |" not in PAGES["docs/performance/index.md"]}


def documented() -> set[str]:
    """The full names that the pages of the reference list."""
    found: set[str] = set()
    for path in (DOCS / "reference").glob("*.md"):
        module = ""
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith(".. currentmodule::"):
                module = line.split()[-1]
            elif match := re.fullmatch(r"   (\w+)", line):
                found.add(f"{module}.{match[1]}")
    return found


def public(module: str) -> set[str]:
    """The names that a module exports; modules among them have pages of their own."""
    home = import_module(module)
    packages = {name for name in home.__all__ if isinstance(getattr(home, name), type(implicitsolve))}
    return {f"{module}.{name}" for name in {*home.__all__} - packages if not name.startswith("__")}


PACKAGES = ["adapters", "jax", "monitor", "precondition", "testing", "torch"]


@pytest.mark.parametrize("module", ["implicitsolve", *(f"implicitsolve.{name}" for name in PACKAGES)])
def test_every_public_name_is_in_the_reference(module: str) -> None:
    if module.endswith(("torch", "jax")):
        pytest.importorskip(module.rpartition(".")[2], exc_type=ImportError)
    assert public(module) <= documented()


def test_every_public_package_has_a_page() -> None:
    exported = {name for name in implicitsolve.__all__ if (DOCS / "reference" / f"{name}.md").exists()}
    assert exported | {"torch", "jax"} == {*PACKAGES}
