"""What a release must agree on: one version everywhere, and what goes into the archives."""

import re
from pathlib import Path

import pytest

import implicitsolve

ROOT = Path(__file__).parent.parent
CITATION = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def sections(changelog: str) -> list[str]:
    """Versions that have a section, newest first."""
    return re.findall(r"^## (\S+) \((?:unreleased|\d{4}-\d\d-\d\d)\)$", changelog, re.MULTILINE)


def test_the_version_is_one_that_can_be_released():
    assert re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", implicitsolve.__version__)


def test_the_newest_section_of_the_changelog_is_this_version_s():
    assert sections(CHANGELOG)[0] == implicitsolve.__version__


@pytest.mark.parametrize(
    "heading", ["## 0.1.0", "## 0.1.0 (soon)", "# 0.1.0 (unreleased)", "text ## 0.1.0 (unreleased)"]
)
def test_other_headings_are_no_sections(heading):
    assert sections(heading) == []


def test_the_citation_is_of_this_version():
    assert re.findall(r"^version: (\S+)$", CITATION, re.MULTILINE) == [implicitsolve.__version__]


def test_the_citation_names_the_four_papers():
    assert len(re.findall(r"^  - type: ", CITATION, re.MULTILINE)) == 4


def test_the_release_workflow_is_the_only_one_that_may_ask_for_an_identity():
    workflows = ROOT / ".github" / "workflows"
    if not workflows.exists():
        pytest.skip("an sdist has no workflows")
    texts = {path.name: path.read_text(encoding="utf-8") for path in workflows.glob("*.yml")}
    assert [name for name, text in texts.items() if "id-token: write" in text] == ["release.yml"]
    assert texts["release.yml"].count("id-token: write") == 1
