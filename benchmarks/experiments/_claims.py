"""What a template of a page claims without a source: numbers, number words and sentences that no result gives.

A number may stand on a page where a stored result or the literature gives it. Templates are parsed: numbers in their
text, in code spans, in what an expression prints, in arithmetic and in the values of a loop are faults, digits of a
format and positions in a list are not. Results hold figures and names; sentences in them would pass unread.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import jinja2
from jinja2 import nodes

__all__ = ["loose_numbers", "sentences"]

FENCE = re.compile(r"```.*?```", re.DOTALL)
PLACE = r"(?:section|Table|Figure)?s? ?[\d.]+"
REFERENCE = re.compile(
    rf"\((?:[^()\d]*\b)?20\d\d(?:, {PLACE}(?:(?:,| and| to) {PLACE})*)?\)"
    r"|\b(?:Table|Figure|section)s? [\d.]+(?: (?:and|to) \d+)?|WikiText-2|SHA-256|P_\d|2 × ?\Z|‖[^‖]*‖²"
    r"|float(?:32|64)|`1 - (?:2 )?s`|\]\([^)]*\)|`[\w./-]*\.(?:py|json|md|txt|conllu)`|`--[a-z-]+(?: [a-z]+)?`"
)
WORDS = re.compile(
    r"\b(?:two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|\w+teen|twenty|thirty|forty|fifty|sixty|seventy|"
    r"eighty|ninety|dozens?|hundreds?|thousands?|millions?|halves|hal(?:f|ved)|thirds?|quarters?|"
    r"(?:fif|six|seven|eigh|nin|ten)ths?|twice|thrice|doubled?|doubles|triples?|tripled|quadruples?|quadrupled|\w+fold)\b"
    r"|orders? of magnitude",
    re.IGNORECASE,
)
MOST_WORDS = 8
FORMATS = {"to", "words", "around", "span"}  # their further arguments are digits and scales
CHOICES = {"where", "range", "ends"}  # their arguments choose rows


def loose_numbers(template: str) -> list[str]:
    """What the template says in numbers of its own."""
    text = FENCE.sub(lambda match: re.sub(r"[^\n]", "", match[0]), template)
    tree = jinja2.Environment(trim_blocks=True, lstrip_blocks=True).parse(text)
    found = []
    for node in tree.find_all(nodes.TemplateData):
        literal = REFERENCE.sub("", node.data)  # a reference may go on in the next line
        found += [line.strip() for line in literal.splitlines() if _has_number(line)]
    return found + [f"{{{{ {value} }}}}" for value in _literals(tree)]


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
    elif isinstance(node, nodes.Filter):
        if node.node is not None:
            yield from _literals(node.node)
        if node.name not in FORMATS | {"map", "rejectattr", "selectattr"}:
            for argument in node.args:
                yield from _literals(argument)
    elif isinstance(node, nodes.Call):
        name = getattr(node.node, "name", "")
        for argument in [] if name in CHOICES else node.args[:1] if name in FORMATS else node.args:
            yield from _literals(argument)
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
