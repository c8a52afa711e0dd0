"""The pages of the experiments say what the stored results say."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("jinja2", reason="Jinja is not installed")

from benchmarks.experiments._claims import loose_numbers, sentences
from benchmarks.experiments._pages import DOCS, TEMPLATES, faults, rendered, results

LIES = [
    "The error is 0.12.",
    "| 3 | {{ x }} |",
    "{{ x }} 4",
    "{{ 0.5 }}",
    "It takes twice the time.",
    "Three seeds agree.",
    "Half a percent better.",
    "Thousands of products are saved.",
    "A third of the texts fails.",
    "`0.12` is the error.",
    "$0.12$ is the error.",
    "{{ x * 0.9 }}",
    "{{ 100 * x / y - 99 }}",
    '{{ "0.12" }}',
    '{{ "twice" }}',
    "{% set error = 0.12 %}{{ error }}",
    "{% for error in [0.12, 0.13] %}{{ error }}{% endfor %}",
    "{{ mean([0.1, 0.2]) }}",
    "{{ x if y else 0.3 }}",
    "{{ x | default(0.3) }}",
    "{% if x %}12 of 20{% endif %}",
    "{{ percent(x, 140.0) | to(1) }}",
    "{{ [x, 7] | join }}",
    "Time falls by an order of magnitude.",
    "It is tenfold faster.",
    "The error is halved.",
    "Some forty products.",
    "½ of the texts fail.",
    "Better by far (the error is 0.12, 2015).",
    "It takes 2 × the time.",
]


def test_pages_trace_to_results():
    assert faults() == []


def test_a_changed_result_changes_its_page():
    stored = results()
    page = (DOCS / "experiments" / "walks.md").read_text(encoding="utf-8")
    template = (TEMPLATES / "experiments" / "walks.md.jinja").read_text(encoding="utf-8")
    assert rendered(stored, template) == page
    stored["recorded_walks"]["rows"][0]["floor"] = 0.4321
    assert "| 0.4321 |" in rendered(stored, template).replace(page, "")


@pytest.mark.parametrize("lie", LIES)
def test_a_number_without_a_source_is_found(lie):
    honest = "Errors are {{ mean(rows, 'error') | to(2, 100) }} % over {{ rows | length | words }} seeds.\n\n"
    assert loose_numbers(honest) == []
    assert loose_numbers(honest + lie)


def test_prose_in_results_is_found():
    assert sentences({"notes": {"findings": "The implicit layer is below all of them for b at most one."}})
    assert sentences({"origin": {"note": "a sentence with a good many words in it, which says where from"}}) == []


def test_references_and_code_may_have_numbers():
    text = "Kazi (2016, section 6), Table 2, P_3, WikiText-2, `1 - 2 s`, {{ x[0] }}\n```bash\nrun --seeds 0 1\n```\n"
    assert loose_numbers(text) == []
