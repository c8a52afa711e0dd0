"""The pages under docs/experiments, written from templates and from the results that the experiments stored.

A template is Markdown with Jinja's placeholders. Every file of ``results`` is a name in it, ``walks`` for
``walks.json``. Numbers that no result gives are faults, and so are sentences in results; see `_claims`.
"""

from __future__ import annotations

import json
import re
import statistics
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from benchmarks.experiments._audit import AUDITS, differences
from benchmarks.experiments._claims import altered, foreign_commands, loose_numbers, sentences, unsaid
from benchmarks.experiments._run import RESULTS
from benchmarks.experiments.reference import changes, counts
from benchmarks.performance_page._table import table

TEMPLATES = Path(__file__).parent / "pages"
DOCS = Path(__file__).parents[2] / "docs"
CODE = r"\{\{(?![\s\d.]*\}\}).*?\}\}|\{%.*?%\}|\{#.*?#\}|```.*?```|`[^`]*`|\]\([^)]*\)"
NOTE = "\n<!-- Written by `python -m benchmarks.experiments pages`; edit its template and results, not this file. -->\n"
ORIGIN = {"commit", "date"}


def results(folder: Path = RESULTS) -> dict[str, Any]:
    """All stored results, by the names of their files."""
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))}


def rendered(stored: dict[str, Any], template: str) -> str:
    """A page, whose paragraphs are filled to 120 columns."""
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters |= {"to": number, "words": words}
    helpers = (
        where,
        mean,
        spread,
        around,
        ends,
        after,
        within,
        power,
        percent,
        ratios,
        below,
        contrast,
        per_walk,
        beside,
        span,
        source,
        counts,
        changes,
        claim,
        runs,
    )
    environment.globals.update({helper.__name__: helper for helper in helpers})
    text = environment.from_string(template).render(stored, stored=stored)
    parts = re.split(r"(```.*?```)", text, flags=re.DOTALL)
    title, rest = "".join(part if part.startswith("```") else _filled(part) for part in parts).split("\n", 1)
    return f"{title}\n{NOTE}{rest}"


def _filled(text: str) -> str:
    paragraphs = re.split(r"(\n{2,})", text)
    return "".join(part if not part.strip() or part.lstrip()[0] in "|#!-" else _wrapped(part) for part in paragraphs)


def _wrapped(paragraph: str) -> str:
    ends = "\n" if paragraph.endswith("\n") else ""
    starts = "\n" if paragraph.startswith("\n") else ""
    lines = textwrap.wrap(" ".join(paragraph.split()), 120, break_long_words=False, break_on_hyphens=False)
    return starts + "\n".join(lines) + ends


def claim(holds: bool, text: str) -> str:
    """A statement without numbers, which is on the page as long as the results say it."""
    if not holds:
        raise ValueError(f"results no longer say: {text}")
    return text


def number(value: float, digits: int = 0, scale: float = 1.0, sign: bool = False) -> str:
    """A number with so many digits behind the point and commas between thousands."""
    return f"{value * scale:{'+' if sign else ''},.{digits}f}"


def words(value: int) -> str:
    """A small number in words."""
    return ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")[value]


def where(rows: Iterable[dict[str, Any]], **values: Any) -> list[dict[str, Any]]:
    """The rows with these values."""
    return [row for row in rows if all(row[key] == value for key, value in values.items())]


def mean(rows: Iterable[Any], key: str = "") -> float:
    """Mean of what stands under a key, "a.b" for a key in a key."""
    return statistics.mean(_under(row, key) for row in rows)


def spread(rows: Sequence[Any], key: str = "") -> float:
    """Standard deviation of the same, over rows that are a sample; zero for one row."""
    return statistics.stdev(_under(row, key) for row in rows) if len(rows) > 1 else 0.0


def around(rows: Sequence[Any], key: str, digits: int, scale: float = 1.0) -> str:
    """Mean and, of more than one row, standard deviation."""
    deviation = f" ± {number(spread(rows, key), digits, scale)}" if len(rows) > 1 else ""
    return number(mean(rows, key), digits, scale) + deviation


def _under(row: Any, key: str) -> float:
    for name in filter(None, key.split(".")):
        row = row[name]
    return float(row)


def ends(rows: Iterable[dict[str, Any]], epochs: int) -> float:
    """CPU seconds that so many epochs took, mean of the runs."""
    return statistics.mean(sum(epoch["seconds"] for epoch in row["epochs"][:epochs]) for row in rows)


def after(rows: Iterable[dict[str, Any]], epochs: int) -> list[dict[str, Any]]:
    """The last of so many epochs of each run."""
    return [row["epochs"][epochs - 1] for row in rows]


def within(rows: Iterable[dict[str, Any]], seconds: float) -> list[float]:
    """Accuracy of each run after the last epoch that ended within so many seconds of training, at least the first."""
    found = []
    for row in rows:
        ends = np.cumsum([epoch["seconds"] for epoch in row["epochs"]])
        found.append(row["epochs"][max(int(np.searchsorted(ends, seconds, "right")) - 1, 0)]["accuracy"])
    return found


def power(rows: Iterable[dict[str, Any]], x: str, y: str) -> float:
    """p of the power x^p nearest to y, by least squares of the logarithms."""
    points = np.log([(_under(row, x), _under(row, y)) for row in rows])
    return float(np.polyfit(*points.T, 1)[0])


def percent(value: float, reference: float) -> float:
    """By how much a value exceeds another, in percent."""
    return 100.0 * (value / reference - 1.0)


def ratios(rows: Iterable[Any], above: str, below: str) -> list[float]:
    """Quotients of what stands under each of these keys."""
    return [_under(row, above) / _under(row, below) for row in rows]


def contrast(rows: Sequence[dict[str, Any]], biases: Sequence[float]) -> float:
    """Time at the bias that takes most, over that at the one that takes least."""
    means = [mean(where(rows, bias=bias), "forward seconds") for bias in biases]
    return max(means) / min(means)


def beside(rows: Iterable[dict[str, Any]], others: Iterable[dict[str, Any]], key: str) -> list[float]:
    """By how much each run exceeds that of the same seed among others, in percent."""
    references = {row["seed"]: _under(row, key) for row in others}
    return [percent(_under(row, key), references[row["seed"]]) for row in rows]


def per_walk(rows: Iterable[dict[str, Any]], batch: int) -> list[float]:
    """Evaluations of the layer and products with its adjoint for each walk of training, of each run."""
    return [row["width"] * batch * row["calls"] / row["walks"] for row in rows]


def below(rows: Sequence[dict[str, Any]], floors: Sequence[dict[str, Any]], key: str) -> int:
    """How many rows have an error that no model can have."""
    least = {row["bias"]: row["floor"]["value"] for row in floors}
    return sum(row[key] < least[row["bias"]] for row in rows)


def span(values: Iterable[float], digits: int) -> str:
    """The least and the largest of some values."""
    found = sorted(values)
    low, high = number(found[0], digits), number(found[-1], digits)
    return low if low == high else f"{low} to {high}"


def source(stored: dict[str, Any]) -> str:
    """Where results come from, in a sentence or two; those with "rerun" false are of an older program."""
    origin = stored["origin"]
    since = "" if origin.get("rerun", True) else " Not rerun since."
    if "page" in origin:
        return f"Recorded on {_when(origin)}; the files of that run were not kept.{since}"
    machine, earlier = origin["hardware"], origin.get("earlier")
    names = ", ".join(f"{name} {value}" for name, value in origin["versions"].items())
    others = f" Seeds {' and '.join(map(str, earlier['seeds']))} were run on {_when(earlier)}." if earlier else ""
    return (
        f"Run on {_when(origin)}: {machine['processor']}, {machine['threads']} of {machine['cores']} cores, on a "
        f"shared machine with a load of {machine['load']:.0f}; {names}.{others}{since}"
    )


def _when(origin: dict[str, Any]) -> str:
    commit, comma, changes = origin["commit"].partition(",")
    return f"{origin['date']} (commit `{commit[:8]}`{comma}{changes})"


def runs(stored: dict[str, Any]) -> str:
    """Table of the results: when and at which commit they were run, and whether that is of an older program."""
    own = {name: result["origin"] for name, result in stored.items() if "hardware" in result["origin"]}
    own |= {name: result["origin"] for name, result in stored.items() if "page" in result["origin"]}
    rows = [
        (f"`{name}`", *_when(origin)[:-1].split(" (commit "), "" if origin.get("rerun", True) else "not since")
        for name, origin in sorted(own.items(), key=lambda pair: (pair[1]["date"], pair[0]))
    ]
    return table(("results", "run on", "commit", "rerun"), rows, texts=4)


def pages() -> dict[Path, str]:
    """Every page as it should be."""
    stored = results()
    texts = {DOCS / path.relative_to(TEMPLATES).with_suffix(""): text for path, text in templates().items()}
    return {path: rendered(stored, text) for path, text in texts.items()}


def templates() -> dict[Path, str]:
    """What the pages are made from."""
    return {path: path.read_text(encoding="utf-8") for path in sorted(TEMPLATES.rglob("*.jinja"))}


def faults() -> list[str]:
    """What is wrong: a page other than its results give, a number without a source, a result that is not used."""
    stored, texts = results(), pages()
    found = [f"{path}: differs from its results" for path, text in texts.items() if differs(path, text)]
    found += [line for path, text in texts.items() for line in differences(stored, path.stem, text)]
    papers = {path: text for path, text in texts.items() if path.stem in AUDITS}
    found += [f"{path.name}: begins without {name}" for path, text in papers.items() for name in unsaid(text)]
    found += [f"{path.name}: {line}" for path, text in templates().items() for line in loose_numbers(text)]
    found += [
        f"{path.name}: no result of {line}"
        for path, text in templates().items()
        for line in foreign_commands(text, stored.values())
    ]
    code = " ".join(part for text in templates().values() for part in re.findall(CODE, text, re.DOTALL))
    for name, result in stored.items():
        if missing := ORIGIN - set(result.get("origin", {})):
            found.append(f"{name}.json: no {', '.join(sorted(missing))} of its origin")
        if not re.search(rf"\b{name}\b", code):
            found.append(f"{name}.json: on no page")
        found += [f"{name}.json: {line}" for line in altered(result)]
        found += [f"{name}.json: prose in {line}" for line in sentences(result)]
    return found


def differs(path: Path, text: str) -> bool:
    """Whether a page has another text."""
    return not path.exists() or path.read_text(encoding="utf-8") != text
