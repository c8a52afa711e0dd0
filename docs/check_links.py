"""Check the links of the built documentation, offline: ``python docs/check_links.py build/docs``.

Each href and src that stays inside the site must name a file there, and each fragment an element of that file. No page
may load anything from another host: scripts, styles, fonts and images are files of the site.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

CSS_LOAD = re.compile(r"""(?:url\(|@import\s)\s*["']?([^"')]+)""")


class Page(HTMLParser):
    """The links of a page, and what links to it can name."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.loads: set[str] = set()
        self.anchors = {"", "top"}  # of every page
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep its links and its names."""
        for name, value in attrs:
            if value and name in ("href", "src"):
                self.links.add(value)
                if name == "src" or tag == "link":
                    self.loads.add(value)
            elif value and (name == "id" or (name == "name" and tag == "a")):
                self.anchors.add(value)


def broken_links(site: Path) -> Iterator[str]:
    """Yield a line for each link to a file or an element that is not there."""
    site = site.resolve()
    files = [path for path in sorted(site.rglob("*.html")) if "_static" not in path.parts]  # the theme's templates
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in files}
    for path, page in pages.items():
        for link in sorted(page.links):
            url = urlsplit(link)
            if url.scheme or url.netloc:
                continue
            target = (path.parent / unquote(url.path)).resolve() if url.path else path
            if not target.is_file() or not target.is_relative_to(site):
                yield f"{path.relative_to(site)}: no file for {link}"
            elif target in pages and unquote(url.fragment) not in pages[target].anchors:
                yield f"{path.relative_to(site)}: no element for {link}"


def loaded_from_elsewhere(site: Path) -> Iterator[str]:
    """Yield a line for each script, style, font or image that a page or a style sheet loads from another host."""
    for path in sorted([*site.rglob("*.html"), *site.rglob("*.css")]):
        text = path.read_text(encoding="utf-8")
        loads = Page(text).loads if path.suffix == ".html" else set(CSS_LOAD.findall(text))
        for link in sorted(link for link in loads if urlsplit(link).netloc):
            yield f"{path.relative_to(site)}: loads {link}"


def main() -> None:
    """Print what is broken, and exit with 1 if anything is."""
    site = Path(sys.argv[1])
    if not (site / "index.html").is_file():
        sys.exit(f"{site} has no index.html")
    if found := [*broken_links(site), *loaded_from_elsewhere(site)]:
        sys.exit("\n".join(found))


if __name__ == "__main__":
    main()
