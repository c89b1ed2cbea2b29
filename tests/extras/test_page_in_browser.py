"""A real browser opens the pages, has nothing to complain of, and shows what can be read."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ROOT = Path(__file__).parents[2]
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome-headless-shell", "chrome")
WIDTHS = (390, 1280)
SCHEMES = ("light", "dark")
# Least height of a line of text in CSS pixels, and least contrast of text (WCAG 2.1, level AA).
LEAST_HEIGHT = 8
LEAST_CONTRAST = 4.5

# Every text of every chart that is shown: what it says, how high a line is, its contrast with the
# page, and what it overlaps or where it is cut. A chart is an image, so its content is put in its
# place for as long. The browser gives colours as rgb() and rgba().
TEXTS = """
async () => {
  const linear = part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4
  const parts = colour => colour.match(/[0-9.]+/g).map(Number)
  const luminance = ([red, green, blue]) =>
    0.2126 * linear(red / 255) + 0.7152 * linear(green / 255) + 0.0722 * linear(blue / 255)
  const behind = element => {
    for (; element; element = element.parentElement) {
      const colour = parts(getComputedStyle(element).backgroundColor)
      if (colour[3] !== 0) return luminance(colour)
    }
    return 1
  }
  const filtered = (colour, filter) => {
    const context = document.createElement("canvas").getContext("2d")
    Object.assign(context, { filter, fillStyle: colour })
    context.fillRect(0, 0, 9, 9)
    return [...context.getImageData(4, 4, 1, 1).data]
  }
  // A box is as high as a line, of which letters leave a part free above and below.
  const meet = (one, other) => one !== other
    && Math.min(one.right, other.right) - Math.max(one.left, other.left) > 1
    && Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top) > one.height / 4
  const found = []
  for (const image of document.querySelectorAll("figure img")) {
    if (!image.checkVisibility()) continue
    const place = document.createElement("div"), { width, height } = image.getBoundingClientRect()
    place.innerHTML = await (await fetch(image.currentSrc)).text()
    const svg = place.querySelector("svg")
    svg.setAttribute("width", width)
    svg.setAttribute("height", height)
    image.hidden = true
    image.closest("figure").append(place)
    const texts = [...svg.querySelectorAll("text")], paper = behind(svg)
    const chart = svg.getBoundingClientRect(), filter = getComputedStyle(image).filter
    const boxes = texts.map(text => text.getBoundingClientRect())
    texts.forEach((text, index) => {
      const box = boxes[index], ink = luminance(filtered(getComputedStyle(text).fill, filter))
      found.push({
        says: text.textContent,
        height: parseFloat(getComputedStyle(text).fontSize) * text.getScreenCTM().a,
        contrast: (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05),
        cut: box.left < chart.left - 1 || box.right > chart.right + 1
          || box.top < chart.top - 1 || box.bottom > chart.bottom + 1,
        overlaps: texts.filter((_, other) => meet(box, boxes[other])).map(each => each.textContent),
      })
    })
    place.remove()
    image.hidden = false
  }
  return found
}
"""
PAPER = "getComputedStyle(document.body).backgroundColor"
# The lowest elements that are wider than the window, where nothing above scrolls sideways.
TOO_WIDE = """
() => [...document.querySelectorAll("body *")].filter(element => {
  if (element.getBoundingClientRect().right <= innerWidth + 1) return false
  for (let each = element; each; each = each.parentElement)
    if (["auto", "scroll"].includes(getComputedStyle(each).overflowX)) return false
  return true
}).map(element => element.outerHTML.slice(0, 200))
"""


class Opened(NamedTuple):
    """A page in the browser, with what it said and asked for meanwhile."""

    page: Page
    complaints: list[str]
    requests: list[str]


def _browser() -> str:
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.fail(
            f"there is no browser ({', '.join(NAMES)}) on the PATH; install the system's chromium"
        )
    return found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The system's browser, without a window."""
    from playwright.sync_api import sync_playwright

    path = _browser()
    # As root, or within a container of limited rights, it cannot make a sandbox of its own.
    sandbox = os.geteuid() != 0
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, chromium_sandbox=sandbox)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The page of a run that was real, and that of a comparison of two."""
    folder = tmp_path_factory.mktemp("pages")

    def flstream(*words: str) -> None:
        subprocess.run([sys.executable, "-m", "flstream", *words], cwd=folder, check=True)

    job = str(ROOT / "jobs" / "digits" / "job.conf")
    for name in ("one", "two"):
        flstream("simulate", job, "--rounds", "3", "--run-dir", name, "--quiet")
    flstream("report", "one", "two", "--output", "comparison.html")
    return {"run": folder / "one" / "report.html", "comparison": folder / "comparison.html"}


@pytest.fixture
def opened(
    browser: Browser, pages: dict[str, Path], request: pytest.FixtureRequest
) -> Iterator[Opened]:
    """The page of a kind at a width, in a colour scheme."""
    kind, width, scheme = request.param
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    opened = Opened(page, [], [])
    _listen(opened)
    page.goto(pages[kind].as_uri())
    yield opened
    page.close()


def _listen(opened: Opened) -> None:
    page, complaints, requests = opened
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))


EVERYWHERE = pytest.mark.parametrize(
    "opened",
    [
        (kind, width, scheme)
        for kind in ("run", "comparison")
        for width in WIDTHS
        for scheme in SCHEMES
    ],
    indirect=True,
    ids=str,
)


@EVERYWHERE
def test_the_page_is_sound_and_can_be_read(
    opened: Opened,
) -> None:
    page, complaints, requests = opened
    for summary in page.locator("summary").all():
        if summary.is_visible() and not summary.evaluate("each => each.parentElement.open"):
            summary.click()
            assert summary.evaluate("each => each.parentElement.open")
            assert summary.evaluate(
                "each => each.parentElement.getBoundingClientRect().height"
                " > each.getBoundingClientRect().height"
            )
    assert complaints == []
    assert [url for url in requests if not url.startswith("data:")] == [page.url]

    assert page.evaluate(TOO_WIDE) == []
    texts = page.evaluate(TEXTS)
    assert len(texts) >= 20
    assert [each for each in texts if each["height"] < LEAST_HEIGHT] == []
    assert [each for each in texts if each["contrast"] < LEAST_CONTRAST] == []
    assert [each for each in texts if each["cut"] or each["overlaps"]] == []
    # A table that says that it sorts would have to be tried here.
    assert page.locator("[aria-sort], th button, th[role=button]").count() == 0


@pytest.mark.parametrize("kind", ["run", "comparison"])
def test_the_page_follows_the_colour_scheme(
    browser: Browser, pages: dict[str, Path], kind: str
) -> None:
    page = browser.new_page(color_scheme="light")
    page.goto(pages[kind].as_uri())
    light = page.evaluate(PAPER)
    page.emulate_media(color_scheme="dark")
    dark = page.evaluate(PAPER)
    page.close()
    assert _brightness(dark) < 60 < 200 < _brightness(light)


def _brightness(colour: str) -> float:
    red, green, blue = (int(part) for part in colour.removeprefix("rgb(").rstrip(")").split(","))
    return (red + green + blue) / 3


def test_complaints_and_requests_are_heard(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "broken.html"
    path.write_text(
        "<!DOCTYPE html><title>x</title><script>undefinedName()</script>"
        "<img src=http://localhost:9/x.png><p style='width: 2000px'>"
    )
    page = browser.new_page(viewport={"width": 390, "height": 900})
    opened = Opened(page, [], [])
    _listen(opened)
    page.goto(path.as_uri())
    assert any("undefinedName" in each for each in opened.complaints)
    assert "http://localhost:9/x.png" in opened.requests
    assert page.evaluate(TOO_WIDE) != []
    page.close()
