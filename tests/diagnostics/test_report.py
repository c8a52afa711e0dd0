"""The page that `report` writes: what it says, and that it is whole and stands alone."""

import base64
import re
import sys
from html.parser import HTMLParser

import numpy as np
import pytest

import implicitsolve as ims
from tests.diagnostics.pages import CASES, solved

VOID = {"meta", "link", "br", "img"}


class Page(HTMLParser):
    """A document whose elements must be closed in order; its text, ids, and references."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID and f"</{tag}" not in (self.get_starttag_text() or "") and not self.is_empty():
            self.open.append(tag)

    def is_empty(self) -> bool:
        return (self.get_starttag_text() or "").endswith("/>")

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.text.append(data)

    def values(self, attribute: str) -> list[str]:
        return [value for _, attributes in self.elements if (value := attributes.get(attribute)) is not None]

    def figures(self) -> list[str]:
        """The pictures, decoded."""
        return [base64.b64decode(value.partition("base64,")[2]).decode() for value in self.values("src")]


def written(folder, name: str, **options) -> tuple[str, Page]:
    result, problem = solved(name)
    path = ims.diagnostics.report(result, folder / "solve.html", problem=problem, **options)
    text = path.read_text(encoding="utf-8")
    return text, Page(text)


@pytest.mark.parametrize("name", CASES)
def test_every_page_is_whole_and_refers_to_nothing_outside(name, tmp_path):
    text, page = written(tmp_path, name)
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    assert all(link == "data:," or link[1:] in ids for link in page.values("href"))
    assert set(page.values("aria-labelledby")) <= set(ids)
    assert all(value.startswith("data:image/svg+xml;base64,") for value in page.values("src"))
    assert all("prefers-color-scheme: dark" in svg and "#000000" not in svg for svg in page.figures())
    assert not re.search(r"<script|@import|url\(|https?:|None|=\"[^\"]*\bnan\b", text)
    assert ims.diagnostics.explain(*solved(name)).summary.rstrip(".") in text
    assert f"implicitsolve {ims.__version__}" in text
    assert text == written(tmp_path, name)[0]  # the same each time


def test_one_solve_has_its_norms_its_structure_and_its_spectrum(tmp_path):
    result, _ = solved("grid")
    text, page = written(tmp_path, "grid")
    assert str(result.native.detection) in text
    assert str(result.native.counts) in text
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    norms, structure, spectrum = page.figures()
    assert ">norm of F(x)<" in norms
    assert "256 × 256" in structure
    assert "50 Ritz values of J" in spectrum


def test_systems_of_a_batch_are_counted_and_those_that_failed_are_named(tmp_path):
    text, page = written(tmp_path, "batch")
    status = solved("batch")[0].status[2].name
    assert f"<h3>{status}, system 2</h3>" in text
    assert written(tmp_path, "many")[0].count("CONVERGED") > 280  # every system is in a table
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    assert f"2: {status}" in page.figures()[0]


def test_a_fixed_point_problem_has_the_circle_in_which_picard_converges(tmp_path):
    text, page = written(tmp_path, "layer")
    assert "BlockBanded(lower=1, upper=1, block_size=4" in text
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    assert ">unit circle<" in page.figures()[-1]


def test_without_matplotlib_a_page_has_its_texts_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    text, page = written(tmp_path, "grid")
    assert not page.values("src")
    assert text.count("Figures need matplotlib: pip install 'implicitsolve[plot]'.".replace("'", "&#x27;")) == 3
    assert re.search(r"step +norm\(F\) .* calls", text)


def test_without_the_problem_no_function_is_called(tmp_path):
    calls = []
    result = ims.root(lambda x: calls.append(1) or x**2 - 2, np.ones(3))
    known = len(calls)
    path = ims.diagnostics.report(result, str(tmp_path / "a.html"))
    assert len(calls) == known
    assert "Spectrum of J" not in path.read_text(encoding="utf-8")


def test_the_arguments_are_checked_before_a_file_is_written(tmp_path):
    report = ims.diagnostics.report
    with pytest.raises(TypeError, match=r"explain: `result` must be the result of a solve, got int"):
        report(3, tmp_path / "a.html")
    with pytest.raises(TypeError, match=r"`problem` is for results of `root`, got a LinearResult"):
        report(solved("linear")[0], tmp_path / "a.html", problem=abs)
    stopped = ims.root(lambda x: x**2 - 2, np.ones(3), monitor=lambda step, x, F: True)
    with pytest.raises(ValueError, match="`system` must be"):  # though `explain` has nothing to check
        report(stopped, tmp_path / "a.html", problem=ims.Problem(lambda x: x, batch_ndim=1))
    with pytest.raises(FileNotFoundError):
        report(solved("linear")[0], tmp_path / "no folder" / "a.html")
    with pytest.raises(TypeError):
        report(solved("linear")[0], 3)
    assert not list(tmp_path.iterdir())
