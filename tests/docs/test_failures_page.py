"""docs/how_to/read_a_failure.md tells of every way to fail, and each of its examples ends as its section says."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import implicitsolve as ims

PAGE = (Path(__file__).parents[2] / "docs" / "how_to" / "read_a_failure.md").read_text(encoding="utf-8")
FAILURES = [status for status in ims.Status if status not in (ims.Status.RUNNING, ims.Status.CONVERGED)]
PARTS = re.split(r"^## `(\w+)`\n", PAGE.split("## Before it fails")[0], flags=re.MULTILINE)
SECTIONS = dict(zip(PARTS[1::2], PARTS[2::2], strict=True))


def blocks(text):
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def quoted(text):
    """What is quoted, as a pattern: of a line what stands before and behind an ellipsis, whatever is between."""
    lines = re.findall(r"^```text\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    words = [" ".join(quote.split()) for quote in lines]
    return [re.escape(quote).replace("…", ".*").replace(r"\ ", r"\s+").replace("Try:", ".*Try:") for quote in words]


@pytest.fixture(scope="module")
def names():
    """What the page's first blocks define, and the executor that a later section uses again."""
    space: dict[str, Any] = {}
    exec("from concurrent.futures import ThreadPoolExecutor", space)
    for block in blocks(PARTS[0]):
        exec(compile(block, "read_a_failure.md", "exec"), space)
    return space


def test_every_failure_has_a_section_in_the_order_of_the_statuses():
    assert list(SECTIONS) == [status.name for status in FAILURES]


@pytest.mark.parametrize("status", FAILURES, ids=lambda status: status.name)
def test_every_failure_is_in_the_table(status):
    assert f"| [`{status.name}`](#{status.name.lower()}) |" in PARTS[0]


@pytest.mark.parametrize("status", FAILURES, ids=lambda status: status.name)
def test_the_example_of_a_section_fails_as_it_says(status, names):
    runs, quotes = blocks(SECTIONS[status.name]), quoted(SECTIONS[status.name])
    assert len(runs) == len(quotes) >= 1
    for block, quote in zip(runs, quotes, strict=True):
        exec(compile(block, f"read_a_failure.md, {status.name}", "exec"), names)
        assert np.all(np.asarray(names["result"].status) == status)
        assert status in {finding.status for finding in names["explanation"].findings}
        assert re.search(quote, str(names["explanation"]), re.DOTALL)
