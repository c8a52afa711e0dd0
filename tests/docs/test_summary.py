"""One sentence says what the library is: README, start page, docstring, package's summary and citation agree."""

import tomllib
from pathlib import Path

import pytest

import implicitsolve as ims

ROOT = Path(__file__).parents[2]
SUMMARY = (ims.__doc__ or "").partition("\n")[0]


def test_the_summary_of_the_package_is_the_sentence():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["description"] + "." == SUMMARY


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_a_page_begins_with_the_sentence(page):
    title, sentence = (ROOT / page).read_text(encoding="utf-8").split("\n\n")[:2]
    assert (title, sentence) == ("# implicitsolve", SUMMARY)


def test_the_citation_s_abstract_is_the_sentence():
    assert f"\n  {SUMMARY}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
