"""The pages of the experiments say what the stored results say."""

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("jinja2", reason="Jinja is not installed")

from benchmarks.experiments._audit import differences
from benchmarks.experiments._claims import altered, foreign_commands, loose_numbers, sentences, unsaid
from benchmarks.experiments._pages import DOCS, TEMPLATES, faults, rendered, results

LIES = [
    "The error is 0.12.",
    "{{ x }} 4",
    "{{ 0.5 }}",
    "It takes twice the time.",
    "Three seeds agree.",
    "A third of the texts fails.",
    "`0.12` is the error.",
    "{{ 100 * x / y - 99 }}",
    '{{ "0.12" }}',
    "{% set error = 0.12 %}{{ error }}",
    "{{ mean([0.1, 0.2]) }}",
    "{{ x if y else 0.3 }}",
    "{{ x | default(0.3) }}",
    "{% if x %}12 of 20{% endif %}",
    "{{ percent(x, 140.0) | to(1) }}",
    "{{ [x, 7] | join }}",
    "Time falls by an order of magnitude.",
    "½ of the texts fail.",
    "Better by far (the error is 0.12, 2015).",
    "It takes 2 × the time.",
    "The time is halving, the error is trebled.",
    "Zero walks failed.",
    "A gain of one percent, with single-digit errors.",
    "A majority of the texts is solved.",
    "P_4 is as accurate.",
    "[a](0.12 is the error)",
    "‖the error is 0.12‖²",
    "{{ mean(rows, 'error') | to(2, 50) }}",
    "{{ dict(error=0.12).error }}",
    "{{ rows | sum(attribute='x', start=5) }}",
    "{{ mean(rows, 'seconds') | to(1) }} minutes",
    "{{ row.seconds | to(1) }} %",
    "{{ claim(x > y, 'the error is halved') }}",
    "The claim of the paper is matched.",
]
TURNED = {
    "rows swapped": ("sentiment", '"gru": "GRU"', '"blstm": "GRU"'),
    "a ratio the wrong way round": (
        "walks",
        'mean(trained, "seconds") / mean(explicit',
        'mean(explicit, "seconds") / mean(trained',
    ),
    "a difference with the wrong sign": ("tagging", "solved.best - lstms.best", "lstms.best - solved.best"),
    "a percentage of the other": ("language", "percent(large[-1].full, ends_at)", "percent(ends_at, large[-1].full)"),
    "columns swapped": ("walks", "{{ printed.inn }} | {{ printed.blstm }}", "{{ printed.blstm }} | {{ printed.inn }}"),
    "another unit": ("tagging", "to(2, 100) }} % above the LSTM", "to(2, 1000) }} % above the LSTM"),
    "another key": ("walks", '"most steps") | to(1) }} | {{', '"most inner iterations") | to(1) }} | {{'),
    "one seed for all": (
        "sentiment",
        "where(documents.rows, layer=layer)",
        "where(documents.rows, layer=layer, seed=0)",
    ),
}


@pytest.fixture(scope="module")
def stored():
    return results()


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


@pytest.mark.parametrize(("page", "said", "other"), TURNED.values(), ids=TURNED)
def test_what_results_say_otherwise_is_found(stored, page, said, other):
    template = (TEMPLATES / "experiments" / f"{page}.md.jinja").read_text(encoding="utf-8")
    assert said in template
    assert differences(stored, page, rendered(stored, template.replace(said, other)))


def test_commands_that_no_result_is_of_are_found():
    fence = "```bash\npython -m benchmarks.experiments.x {}\n```\n"
    results = [{"origin": {}}, {"settings": {"rho": [2, 5], "rate": 0.004, "layers": ["a"], "ablation": True}}]
    for own in ("--rho 5 2 --ablation", "--rate 4e-3 --json y.json", "--rho 3    # another example"):
        assert foreign_commands(fence.format(own), results) == []
    for foreign in ("--rho 2", "--rate 0.04", "--layers a b", "--epochs 3", "--fetch"):
        assert foreign_commands(fence.format(foreign), results) == [foreign]


def test_an_altered_result_is_found(stored):
    rows = [dict(row) for row in stored["tagging"]["rows"]]
    assert altered({"rows": rows}) == []
    rows[0]["accuracy"] += 0.01
    assert altered({"rows": rows})


def test_a_first_paragraph_says_by_what_and_whether_the_claim_holds():
    assert unsaid("# Title\n\n<!-- note -->\n\nSolved by `root`, one seed; the claim is missed.\n\nMore.") == []
    assert len(unsaid("# Title\n\n<!-- note -->\n\nIt works.\n\nBy `root`, one seed; the claim is missed.")) == 3


def test_a_statement_ends_where_results_no_longer_say_it():
    assert rendered({"x": 1}, "# Title\n{{ claim(x > 0, 'it grows') }}").endswith("it grows")
    with pytest.raises(ValueError, match="no longer say: it grows"):
        rendered({"x": -1}, "# Title\n{{ claim(x > 0, 'it grows') }}")


def test_prose_in_results_is_found():
    assert sentences({"notes": {"findings": "The implicit layer is below all of them for b at most one."}})
    assert sentences({"origin": {"note": "a sentence with a good many words in it, which says where from"}}) == []


def test_references_and_code_may_have_numbers():
    text = "Kazi (2016, section 6), Table 2, P_3, WikiText-2, `1 - 2 s`, {{ x[0] }}\n```bash\nrun --seeds 0 1\n```\n"
    assert loose_numbers(text) == []
