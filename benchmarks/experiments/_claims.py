"""What a template of a page claims without a source: numbers, number words and sentences that no result gives.

A number may stand on a page where a stored result or the literature gives it. Templates are parsed: numbers in their
text, in code spans, in what an expression prints, in arithmetic and in the values of a loop are faults, digits of a
format and positions in a list are not. Results hold figures and names; sentences in them would pass unread.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterable, Iterator
from typing import Any

import jinja2
from jinja2 import nodes

__all__ = ["altered", "foreign_commands", "loose_numbers", "sentences", "unsaid"]

FENCE = re.compile(r"```.*?```", re.DOTALL)
PLACE = r"(?:section|Table|Figure)?s? ?[\d.]+"
REFERENCE = re.compile(
    rf"\((?:[^()\d]*\b)?20\d\d(?:, {PLACE}(?:(?:,| and| to) {PLACE})*)?\)"
    r"|\b(?:Table|Figure|section)s? [\d.]+(?: (?:and|to) \d+)?|WikiText-2|SHA-256|P_[013]\b|2 × ?\Z|‖[a-zA-Z/]+‖²"
    r"|float(?:32|64)|`1 - (?:2 )?s`|\]\([^)\s]*\)|`[\w./-]*\.(?:py|json|md|txt|conllu)`|`--[a-z-]+(?: [a-z]+)?`"
)
WORDS = re.compile(
    r"\b(?:zero [a-z]+s|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|\w+teen|twenty|thirty|forty|fifty|"
    r"sixty|seventy|eighty|ninety|dozens?|hundreds?|thousands?|millions?|halves|hal(?:f|ved|ving)|thirds?|quarters?|"
    r"(?:fif|six|seven|eigh|nin|ten)ths?|twice|thrice|(?:double|triple|treble|quadruple)[ds]?|doubling|tripling|quadrupling|\w+fold|couple|pairs?|"
    r"one (?:percent|in|out)|score of|several times|a (?:ma|mi)jority|\w+-digit)\b|orders? of magnitude",
    re.IGNORECASE,
)
VERDICT = re.compile(r"\b(?:matched|missed)\b")
MOST_WORDS = 8
FORMATS = {"to", "words", "around", "span"}  # their further arguments are digits and scales
DIGITS = (0, 1, 2, 3, 4, 100, 1000)  # and scales of percent and thousandths: others would be factors
SELECTIONS = {"map", "rejectattr", "selectattr"}
PATHS = {"json", "load", "folder", "data"}
OPENING = {
    "solver": r"`root`|Newton|solver",
    "seeds": r"\bseeds?\b",
    "what became of the paper's claim": r"matched|missed|not tested",
}
CHOICES = {"where", "range", "ends"}  # their arguments choose rows
OTHER_UNITS = re.compile(r"\s*(?:%|percent|minutes|hours|days|milliseconds|ms\b|microseconds)")


def loose_numbers(template: str) -> list[str]:
    """What the template says in numbers of its own."""
    text = FENCE.sub(lambda match: re.sub(r"[^\n]", "", match[0]), template)
    tree = jinja2.Environment(trim_blocks=True, lstrip_blocks=True).parse(text)
    found = []
    for node in tree.find_all(nodes.TemplateData):
        literal = REFERENCE.sub("", node.data)  # a reference may go on in the next line
        found += [line.strip() for line in literal.splitlines() if _has_number(line) or VERDICT.search(line)]
    found += [f"{{{{ {value} }}}}" for value in _literals(tree)]
    return found + [f"{name} followed by{text[:20]}" for name, text in _units(tree)]


def _units(tree: nodes.Template) -> Iterator[tuple[str, str]]:
    """Where text after an expression names another unit than the expression has."""
    for output in tree.find_all(nodes.Output):
        for shown, text in itertools.pairwise([*output.nodes, nodes.TemplateData("")]):
            if isinstance(shown, nodes.TemplateData) or not isinstance(text, nodes.TemplateData):
                continue
            keys = [
                str(getattr(key, "value", getattr(key, "attr", "")))
                for key in shown.find_all((nodes.Const, nodes.Getattr))
            ]
            if any("seconds" in key for key in keys) and not shown.find(nodes.Div) and OTHER_UNITS.match(text.data):
                yield "seconds", text.data


def _literals(node: nodes.Node) -> Iterator[Any]:
    """Numbers, and strings with numbers, of the expressions below a node that no result gives."""
    if isinstance(node, nodes.Const):
        is_number = isinstance(node.value, int | float) and not isinstance(node.value, bool)
        if is_number or (isinstance(node.value, str) and _has_number(node.value)):
            yield node.value
    elif isinstance(node, nodes.Pair):
        yield from _literals(node.value)
    elif isinstance(node, nodes.Getitem):  # a position, or a key
        yield from _literals(node.node)
    elif isinstance(node, nodes.Filter | nodes.Call):
        name = node.name if isinstance(node, nodes.Filter) else getattr(node.node, "name", "")
        shown, further = ([node.node], node.args) if isinstance(node, nodes.Filter) else (node.args[:1], node.args[1:])
        if name not in CHOICES:
            for argument in (*shown, *(() if name in FORMATS | SELECTIONS else further), *node.kwargs):
                yield from _literals(argument)
        if name in FORMATS:
            yield from (value for part in further for value in _literals(part) if value not in DIGITS)
    elif isinstance(node, nodes.Compare):
        return
    else:
        for child in node.iter_child_nodes():
            yield from _literals(child)


def _has_number(text: str) -> bool:
    own = REFERENCE.sub("", text)
    return any(character.isnumeric() for character in own) or bool(WORDS.search(own))


def sentences(value: Any, path: str = "") -> list[str]:
    """Where stored results hold prose: strings of more words than a name has, besides their origin."""
    if isinstance(value, dict):
        return [found for key, part in value.items() if key != "origin" for found in sentences(part, f"{path}.{key}")]
    if isinstance(value, list):
        return [found for i, part in enumerate(value) for found in sentences(part, f"{path}[{i}]")]
    if isinstance(value, str) and len(value.split()) > MOST_WORDS:
        return [f"{path.lstrip('.')}: {value}"]
    return []


def altered(stored: dict[str, Any]) -> list[str]:
    """Rows of results that say otherwise than the curves that they end."""
    found, rows = [], stored.get("rows", ())
    for row in rows if isinstance(rows, list) else ():
        if "curve" in row:
            ends, said = min(row["curve"], key=lambda epoch: epoch["choice"])["held"], row["perplexity"]
        elif "epochs" in row and "accuracy" in row:
            ends, said = row["epochs"][-1]["accuracy"], row["accuracy"]
        else:
            continue
        found += [f"{said}, but its curve ends at {ends}"] * (said != ends)
    return found


def unsaid(page: str) -> list[str]:
    """What the first paragraph of a page with results should say, and does not."""
    first = page.split("-->", 1)[1].strip().split("\n\n", 1)[0]
    return [name for name, pattern in OPENING.items() if not re.search(pattern, first)]


def foreign_commands(template: str, stored: Iterable[dict[str, Any]]) -> list[str]:
    """Commands of experiments that no stored result is of; those with a comment are other examples."""
    settings = [result["settings"] for result in stored if "settings" in result]
    lines = re.findall(r"^python -m benchmarks\.experiments\.\w+ ([^#\n]*)$", template, re.MULTILINE)
    return [line for line in lines if not any(_is_of(line, given) for given in settings)]


def _is_of(line: str, settings: dict[str, Any]) -> bool:
    """Whether a result has what a command line sets; paths are no settings."""
    words = [shlex.split(option) for option in line.split("--") if option]
    given = {name.replace("-", "_"): values or [True] for name, *values in words}
    own = {name: settings.get(name, ()) for name in given.keys() - PATHS}
    return all(
        _plain(given[name]) == _plain(value if isinstance(value, list) else [value]) for name, value in own.items()
    )


def _plain(values: Iterable[Any]) -> set[Any]:
    """Values without an order, numbers as numbers."""
    return {float(value) if re.fullmatch(r"\d[\d.]*(?:e-?\d+)?", str(value)) else value for value in values}
