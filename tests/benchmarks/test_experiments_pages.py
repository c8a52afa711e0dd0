"""The pages of the experiments say what the stored results say."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("jinja2", reason="Jinja is not installed")

from benchmarks.experiments._pages import DOCS, TEMPLATES, faults, loose_numbers, rendered, results, table


def test_pages_trace_to_results():
    assert faults() == []


def test_a_table_is_generated_from_its_file():
    """A changed result changes its page, and nothing but its number."""
    stored = results()
    cell = stored["recorded_walks"]["tables"]["errors"]["rows"][0][1]
    page = (DOCS / "experiments" / "walks.md").read_text(encoding="utf-8")
    written = table(stored["recorded_walks"]["tables"]["errors"])
    assert written in page
    stored["recorded_walks"]["tables"]["errors"]["rows"][0][1] = "0.5"
    template = (TEMPLATES / "experiments" / "walks.md.jinja").read_text(encoding="utf-8")
    assert rendered(stored, template) == page.replace(written, written.replace(f" {cell} ", " 0.5 ", 1))


@pytest.mark.parametrize("text", ["The error is 0.12.", "| 3 | {{ x }} |", "{{ x }} 4", "{{ 0.5 }}"])
def test_numbers_without_a_source_are_found(text):
    assert loose_numbers(text) == [re.sub(r"{{ x }}", "", text).strip()]


def test_references_and_code_may_have_numbers():
    text = "Kazi (2016, section 6), Table 2, P_3, WikiText-2, `n = 20`, {{ x[0] }}\n```bash\nrun --seeds 0 1\n```\n"
    assert loose_numbers(text) == []
