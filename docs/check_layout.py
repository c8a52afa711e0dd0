"""Check the built pages in Chromium: ``python docs/check_layout.py build/docs``, with playwright.

At the widths of a telephone, a laptop and a large screen no page may scroll sideways, and the parts of its header stay
apart; on the larger two, neither code nor a table may be cut off.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import sync_playwright

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
WIDTHS = 400, 1400, 1920  # pixels
FAULTS = """
() => {
  const hidden = (e) => e.scrollWidth - e.clientWidth;
  const parts = document.querySelectorAll("main :is(.highlight pre, .pst-scrollable-table-container, table)");
  const shown = (e) => `${e.tagName} ${hidden(e)} px: ${e.textContent.trim().slice(0, 60)}`;
  const boxes = [...document.querySelectorAll(".bd-header :is(button, .navbar-brand)")]
    .map((e) => e.getBoundingClientRect()).filter((box) => box.width).sort((a, b) => a.left - b.left);
  const isCrowded = boxes.some((box, i) => i && box.left < boxes[i - 1].right + 8);
  const whole = isCrowded ? ["parts of the header touch"] : [];
  const sideways = hidden(document.documentElement);
  if (sideways > 0) whole.push(`scrolls by ${sideways} px`);
  return [whole, [...parts].filter((e) => hidden(e) > 1).map(shown)];
}
"""


def faults(folder: Path) -> Iterator[str]:
    """Yield what does not fit, page by page."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        tab = browser.new_page()
        for page in sorted(folder.rglob("*.html")):
            if {"_static", "generated"} & set(page.parts):  # those of single names are all alike
                continue
            tab.goto(page.resolve().as_uri())
            tab.add_style_tag(content="* { transition: none !important }")
            for width in WIDTHS:
                tab.set_viewport_size({"width": width, "height": 900})
                whole, parts = tab.evaluate(FAULTS)
                for fault in whole + parts * (width >= WIDTHS[1]):
                    yield f"{page.relative_to(folder)} at {width} px: {fault!r}"
        browser.close()


if __name__ == "__main__":
    if CHROMIUM is None:
        sys.stderr.write("Chromium is not installed: the layout was not checked\n")
    elif found := list(faults(Path(sys.argv[1]))):
        sys.exit("\n".join(found))
