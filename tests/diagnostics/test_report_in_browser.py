"""The page that `report` writes, in Chromium: offline, by keyboard, in both color schemes."""

import os
import shutil

import pytest

import implicitsolve as ims
from tests.diagnostics.pages import solved

pytestmark = pytest.mark.browser
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
QUIET = ["disable-gpu", "disable-quic", "no-first-run", "disable-background-networking", "disable-component-update"]
NAMES = "grid", "batch", "many", "layer", "nonfinite", "linear"

# Each text's smallest contrast with what is behind it: WCAG 2.2 asks for 4.5.
CONTRAST = """() => {
  const parse = color => color.match(/[\\d.]+/g).map(Number);
  const light = color => {
    const [r, g, b] = parse(color).map(c => c / 255).map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = element => {
    for (let e = element; e; e = e.parentElement) {
      const color = getComputedStyle(e).backgroundColor;
      if (parse(color)[3] !== 0) return color;
    }
  };
  const ratio = (a, b) => {
    const [low, high] = [light(a), light(b)].sort((x, y) => x - y);
    return (high + 0.05) / (low + 0.05);
  };
  const found = [];
  for (const e of document.querySelectorAll('body *')) {
    const says = [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
    if (says) found.push([ratio(getComputedStyle(e).color, behind(e)), `${e.tagName}.${e.className}`]);
  }
  const ground = getComputedStyle(document.body).backgroundColor;
  return { text: found.sort((a, b) => a[0] - b[0])[0], ground };
}"""


@pytest.fixture(scope="module")
def context(tmp_path_factory):
    """An offline browser with an empty profile."""
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed")
    arguments = [f"--{name}" for name in [*QUIET, "disable-sync", *(["no-sandbox"] if os.geteuid() == 0 else [])]]
    with driver.sync_playwright() as playwright:
        folder = str(tmp_path_factory.mktemp("profile"))
        context = playwright.chromium.launch_persistent_context(
            folder, executable_path=CHROMIUM, args=arguments, offline=True, viewport={"width": 1000, "height": 800}
        )
        context.set_default_timeout(20_000)
        yield context
        context.close()


@pytest.fixture(scope="module")
def addresses(tmp_path_factory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("pages")
    pages = {}
    for name in NAMES:
        result, problem = solved(name)
        pages[name] = ims.diagnostics.report(result, folder / f"{name}.html", problem=problem).as_uri()
    return pages


@pytest.fixture
def page(context):
    """A page that notes what it asks for and complains of."""
    page = context.new_page()
    page.asked, page.said = [], []
    page.on("request", lambda request: page.asked.append(request.url))
    page.on("console", lambda message: page.said.append(message.text))
    page.on("pageerror", lambda error: page.said.append(str(error)))
    yield page
    page.close()


def test_pages_show_their_parts_and_ask_for_nothing_else(page, addresses):
    for name, address in addresses.items():
        page.asked.clear()
        page.goto(address)
        assert page.asked == [address]
        assert page.said == []
        assert page.locator("header, nav, main, footer").count() == 4
        assert page.get_by_role("heading", level=1).count() == 1
        sections = page.get_by_role("heading", level=2).all_inner_texts()
        assert sections == page.get_by_role("navigation").get_by_role("link").all_inner_texts(), name
        for figure in page.locator("main figure").all():
            box = figure.get_by_role("img").first.bounding_box()
            assert min(box["width"], box["height"]) > 200
            assert figure.get_by_role("img").first.get_attribute("alt")
        assert page.locator("pre:not([aria-label])").count() == 0


def test_the_page_is_used_with_the_keyboard(page, addresses):
    page.goto(addresses["many"])
    page.keyboard.press("Tab")
    skip = page.locator(":focus")
    assert skip.inner_text() == "Skip to the findings"
    assert skip.bounding_box()["x"] > 0  # seen while it has the focus
    page.keyboard.press("Enter")
    assert page.locator(":focus").inner_text() == "Findings"
    texts = 0
    for _ in range(40):
        page.keyboard.press("Tab")
        texts += page.locator("pre:focus").count()
        if page.locator(".skip:focus").count():  # once round
            break
    assert texts == page.locator("pre").count() == 2


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_color_schemes_can_be_read(page, addresses, scheme):
    page.emulate_media(color_scheme=scheme)
    for name, address in addresses.items():
        page.goto(address)
        found = page.evaluate(CONTRAST)
        assert found["text"][0] >= 4.5, (name, found)
        assert (int(found["ground"][4:].split(",")[0]) > 128) == (scheme == "light")


def test_a_narrow_window_needs_no_sideways_scrolling(page, addresses):
    page.set_viewport_size({"width": 360, "height": 700})
    for name, address in addresses.items():
        page.goto(address)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, name
