"""Check the English of the pages, offline: ``python docs/prose.py``.

All pages and docstrings are checked by proselint's rules, for sentences of more than 40 words, and for phrases that a
native speaker would not use, or that ascribe wishes and opinions to programs. Code and formulas are not prose. A
docstring names its subject at the beginning.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from proselint.checks import __register__
from proselint.config import DEFAULT
from proselint.registry import CheckRegistry
from proselint.tools import LintFile

ROOT = Path(__file__).resolve().parents[1]
LONGEST = 40

# Left out: typography, which is Markdown's; dates, of which there are none; and hyphens in the titles of papers.
LEFT_OUT = ("typography.symbols", "typography.diacritical_marks", "dates_times", "misc.phrasal_adjectives.ly")
CHECKS = dict.fromkeys(LEFT_OUT, False) | DEFAULT["checks"]

# What is not prose, and what takes its place: a space ends no sentence, another sign separates words.
NOT_PROSE = {
    r"^ *(`{3,}|:{3,})\{?(?!important|note|warning|tip).*?^ *\1 *$": " ",  # blocks of code
    r"<!--.*?-->": " ",
    r"\$\$.*?\$\$|\$[^$]+\$|``[^`]+``|`[^`]+`|https?://[^\s)>]+": "§",
    r"^\w[\w ]*\n-{3,}$|^\S[^\n]*(?=\n    )|^ *>>>.*?(?=\n\s*\n|\Z)|^=[= ]+=\n.*?\n(?=\n)": "§",  # numpydoc
    r"[^\n](?=\n\n)": "§",  # where a paragraph or a heading ends
    r"(?<=\])\([^)\s]+\)": " ",  # targets of links
}

FOREIGN = {
    r"wish(?:es|ed)?": "option, request, requirement",
    r"verdicts?": "status",
    r"(?:told|tell) apart": "distinguished by",
    r"by itself|by themselves|of itself": "automatically, alone",
    r"stands? behind": "is applied by, implements",
    r"while (?:it|they) serves?|as long as (?:it|they) serves?": "while it converges",
    r"(?:two|three|four|five|six|several) times less": "a third of",
    r"without a word": "silently, without a warning",
    r"knows? nothing of": "does not depend on",
    r"is (?:un)?aware of|are (?:un)?aware of": "handles, ignores",
    r"in one go": "in one call, at once",
    r"brings? (?:itself|with it)": "includes",
    r"it pays|does it pay|that pays|which pays|pays? (?:off )?(?:where|when|for)": "is worth its cost, is faster",
    r"lies? in the nature": "is inherent",
    r"on its own account": "independently",
    r"takes? nothing from": "does not change",
    r"hands? (?:over|back|out)": "passes, returns",
    r"has? to do with": "concerns",
    r"as good as (?:never|always|all)": "almost",
    r"anew": "again",
    r"goes? on": "continues",
    r"comes? to rest": "becomes stationary",
    r"for (?:it|them)sel(?:f|ves)": "separately",
    r"(?:is|are) no (?:array|matrix|root|number|real)": "is not a",
    r"(?:steps?|products?|seconds|words?|numbers?) an? (?:step|batch|epoch|word|text|sentence|system)": "per",
    r"nobody": "no rank, no system, no one",
    r"e\.g\.|i\.e\.": "for example, that is",
    r"(?:asks?|asked) (?:for|of)": "requests, requires",
    r"wants?|wanted": "requests, requires, is to",
    r"believes?|believed": "relies on, confirmed",
    r"tells?|told": "shows, marks, distinguishes",
    r"gives? up|given up|gave up": "ends, is ended",
    r"thrice": "three times",
    r"and its kin|and the like": "and similar functions",
    r"does not say": "does not record",
}
UNNAMED = (
    r"(?:Return )?the same\b|(?:one of )?th(?:ose|ese)\b|its?\b|their\b|of\b|exact ones"  # at a docstring's beginning
)


def prose(page: str) -> str:
    """Return the text with everything that is not prose replaced by signs, at the same places."""
    for pattern, sign in NOT_PROSE.items():
        page = re.sub(pattern, partial(masked, sign), page, flags=re.MULTILINE | re.DOTALL)
    return page


def masked(sign: str, match: re.Match[str]) -> str:
    """Return as many signs, on as many lines."""
    return re.sub(r"[^\n]", sign, match[0])


def long_sentences(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the beginning of each sentence with more words than `LONGEST`."""
    for block in re.finditer(r"(?:^[^\n|#]+\n?)+", text, re.MULTILINE):
        items = re.split(r"(^ *(?:[-*]|\d+\.) )", block[0], flags=re.MULTILINE)
        place = block.start()
        for item in items:
            for sentence in re.split(r"(?<=[.!?:])(?=\s)", item):
                words = re.findall(r"[A-Za-z'’-]{2,}|\b[aI]\b", sentence)
                if len(words) > LONGEST:
                    start = place + len(sentence) - len(sentence.lstrip())
                    yield text.count("\n", 0, start) + 1, f"{len(words)} words: {' '.join(sentence.split()[:6])} ..."
                place += len(sentence)


def complaints(page: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the fault of each phrase that a reader would stumble over."""
    text = prose(page)
    yield from long_sentences(text)
    for pattern, better in FOREIGN.items():
        for match in re.finditer(rf"\b(?:{pattern})", text, re.IGNORECASE):
            yield text.count("\n", 0, match.start()) + 1, f"{match[0]!r}: {better}"
    for found in LintFile("page", text).lint({**DEFAULT, "checks": CHECKS}):
        repeated = found.check_result.check_path == "lexical_illusions"
        if repeated and not re.search("[A-Za-z]{3}", text[slice(*found.check_result.span)]):
            continue  # a product of variables
        yield found.pos[0], f"{found.check_result.check_path}: {found.check_result.message}"


def texts() -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each page, and of each docstring of the package, which the reference shows."""
    made = {ROOT / "docs" / "tutorials", ROOT / "docs" / "reference" / "generated"}
    for page in (*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md"))):
        if not made & set(page.parents):
            yield f"{page.relative_to(ROOT)}:", page.read_text(encoding="utf-8")
    for tutorial in sorted((ROOT / "examples" / "tutorials").glob("*.py")):
        text = re.sub(r"^(?!# ).*$", "", tutorial.read_text(encoding="utf-8").split('"""', 2)[2], flags=re.MULTILINE)
        yield f"{tutorial.relative_to(ROOT)}:", re.sub("^# ", "", text, flags=re.MULTILINE)
    for module in sorted([*(ROOT / "implicitsolve").rglob("*.py"), *(ROOT / "examples").rglob("*.py")]):
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)):
                yield f"{module.relative_to(ROOT)}: {getattr(node, 'name', '')}: line ", text


def main() -> None:
    """Print what is found, and exit with 1 if there is anything."""
    registry = CheckRegistry()
    registry.register_many(__register__)
    found = [f"{name}{line}: {fault}" for name, text in texts() for line, fault in sorted(complaints(text))]
    found += [f"{name}1: say of what: {begun[0]!r}" for name, text in texts()
              if name.endswith("line ") and (begun := re.match(UNNAMED, text, re.IGNORECASE))]  # fmt: skip
    if found:
        sys.exit("\n".join(found))


if __name__ == "__main__":
    main()
