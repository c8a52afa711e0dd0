"""The link checker finds what is broken or loaded from another host, and nothing else."""

import re
import sys
from pathlib import Path

import pytest

from docs.check_links import broken_links, loaded_from_elsewhere, main

INDEX = """
<a href="sub/page.html#here">there</a> <a href="sub/page.html?v=1#named">there</a>
<a href="#own">here</a> <a href="#">top</a> <a>no link</a> <h1 id="own">Title</h1> <img src="a%20b.svg">
<a href="https://example.org/nothing#at-all">outside</a> <a href="mailto:a@example.org">mail</a>
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A site without a broken link."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "index.html").write_text(INDEX, encoding="utf-8")
    (tmp_path / "sub" / "page.html").write_text('<p id="here"></p><a name="named" href="../index.html#own">', "utf-8")
    (tmp_path / "a b.svg").touch()
    return tmp_path


def add(site: Path, html: str) -> None:
    page = site / "sub" / "page.html"
    page.write_text(page.read_text(encoding="utf-8") + html, encoding="utf-8")


def test_nothing_is_broken(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(broken_links(site)) == []
    monkeypatch.setattr(sys, "argv", ["check_links.py", str(site)])
    main()


@pytest.mark.parametrize(
    ("html", "message"),
    [
        ('<a href="nowhere.html">', "no file for nowhere.html"),
        ('<img src="../missing.png">', "no file for ../missing.png"),
        ('<a href="..">', "no file for .."),
        ('<a href="../../outside.html">', "no file for ../../outside.html"),
        ('<a href="../index.html#absent">', "no element for ../index.html#absent"),
        ('<a href="#absent">', "no element for #absent"),
        ('<div name="only"></div><a href="#only">', "no element for #only"),
    ],
)
def test_what_is_broken_is_found(site: Path, html: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (site.parent / "outside.html").touch()
    add(site, html)
    assert list(broken_links(site)) == [f"sub/page.html: {message}"]
    monkeypatch.setattr(sys, "argv", ["check_links.py", str(site)])
    with pytest.raises(SystemExit, match=re.escape(message)):
        main()


@pytest.mark.parametrize(
    ("file", "text", "link"),
    [
        ("page.html", '<script src="https://cdn.example.org/math.js"></script>', "https://cdn.example.org/math.js"),
        ("page.html", '<link rel="stylesheet" href="//example.org/a.css">', "//example.org/a.css"),
        ("page.html", '<img src="http://example.org/a.png">', "http://example.org/a.png"),
        ("a.css", '@font-face { src: url("https://example.org/a.woff2") }', "https://example.org/a.woff2"),
        ("a.css", "@import 'https://example.org/b.css'", "https://example.org/b.css"),
    ],
)
def test_what_is_loaded_from_another_host_is_found(
    site: Path, file: str, text: str, link: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert list(loaded_from_elsewhere(site)) == []
    (site / file).write_text(text, encoding="utf-8")
    assert list(loaded_from_elsewhere(site)) == [f"{file}: loads {link}"]
    monkeypatch.setattr(sys, "argv", ["check_links.py", str(site)])
    with pytest.raises(SystemExit, match="loads"):
        main()


def test_a_site_must_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["check_links.py", str(tmp_path)])
    with pytest.raises(SystemExit, match=r"no index\.html"):
        main()
