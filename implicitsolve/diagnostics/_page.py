"""Parts of a page: `content`, `head`, `svg`, `sections` and `legend` are HTML, all other arguments text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources

from implicitsolve._summary import Table


def page(kind: str, title: str, head: str, sections: Mapping[str, str], version: str) -> str:
    """The whole document; its policy forbids the browser to load anything."""
    ids = {name: name.lower().replace(" ", "-") for name in sections}
    links = "".join(f'<li><a href="#{ids[name]}">{name}</a></li>' for name in sections)
    parts = "\n".join(
        f'<section aria-labelledby="{ids[name]}"><h2 id="{ids[name]}" tabindex="-1">{name}</h2>\n{part}\n</section>'
        for name, part in sections.items()
    )
    style = resources.files("implicitsolve.diagnostics").joinpath("report.css").read_text(encoding="utf-8")
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>{escape(title)} – implicitsolve</title>
<link rel="icon" href="data:,">
<style>
{style}</style>
</head>
<body>
<a class="skip" href="#findings">Skip to the findings</a>
<header>
<p class="kind">{kind}</p>
<h1>{escape(title.rstrip("."))}</h1>
{head}
</header>
<nav aria-label="Sections"><ul>{links}</ul></nav>
<main>
{parts}
</main>
<footer>Written by implicitsolve {version}.</footer>
</body>
</html>
"""


def table(caption: str, table: Table, kind: str = "") -> str:
    """A table, whose caption is its name; `kind` "text" is one of names and words."""
    header, rows = table
    names = "".join(f'<th scope="col">{escape(name)}</th>' for name in header)
    head = f"<thead><tr>{names}</tr></thead>" if header else ""
    lines = ""
    for first, *others in rows:
        cells = "".join(f"<td>{escape(part)}</td>" for part in others)
        lines += f'<tr><th scope="row">{escape(first)}</th>{cells}</tr>'
    content = f'<table class="{kind}"><caption>{escape(caption)}</caption>{head}<tbody>{lines}</tbody></table>'
    return scrolled(caption, content)


def scrolled(name: str, content: str) -> str:
    """A region that scrolls where it is too wide, by the keyboard too."""
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(name)}">{content}</div>'


def details(summary: str, content: str) -> str:
    """What is shown when asked for."""
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"


def figure(svg: str, caption: str, legend: Sequence[str] = (), *, kind: str = "wide") -> str:
    """A figure with its caption, below it or, `kind` "beside", at its side."""
    entries = "".join(f"<li>{entry}</li>" for entry in legend)
    listed = f'<ul class="legend">{entries}</ul>' if legend else ""
    region = scrolled(f"Figure: {caption.partition('.')[0]}", svg)
    return f'<figure class="{kind}">{region}<figcaption>{escape(caption)}{listed}</figcaption></figure>'
