"""A real browser opens the pages, has nothing to complain of, and shows what can be read."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from nightly_cases import first_and_nightly
from shared_results import made_once

ROOT = Path(__file__).parents[2]
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome-headless-shell", "chrome")
# Least height of a line of text in CSS pixels, and least contrast of text (WCAG 2.1, level AA).
LEAST_HEIGHT = 8
LEAST_CONTRAST = 4.5

# Every text of every chart that is shown: what it says, how high a line is, its contrast with the
# page, and what it overlaps or where it is cut. The browser gives colours as rgb() and rgba().
TEXTS = """
() => {
  const linear = part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4
  const parts = colour => colour.match(/[0-9.]+/g).map(Number)
  const luminance = ([red, green, blue]) =>
    0.2126 * linear(red / 255) + 0.7152 * linear(green / 255) + 0.0722 * linear(blue / 255)
  // A box is as high as a line, of which letters leave a part free above and below.
  const meet = (one, other) => one !== other
    && Math.min(one.right, other.right) - Math.max(one.left, other.left) > 1
    && Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top) > one.height / 4
  const paper = luminance(parts(getComputedStyle(document.documentElement).backgroundColor))
  const found = []
  for (const svg of document.querySelectorAll("figure svg")) {
    if (!svg.checkVisibility()) continue
    const texts = [...svg.querySelectorAll("text")], chart = svg.getBoundingClientRect()
    const boxes = texts.map(text => text.getBoundingClientRect())
    texts.forEach((text, index) => {
      const box = boxes[index], ink = luminance(parts(getComputedStyle(text).fill))
      found.push({
        says: text.textContent,
        height: parseFloat(getComputedStyle(text).fontSize) * text.getScreenCTM().a,
        contrast: (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05),
        cut: box.left < chart.left - 1 || box.right > chart.right + 1
          || box.top < chart.top - 1 || box.bottom > chart.bottom + 1,
        overlaps: texts.filter((_, other) => meet(box, boxes[other])).map(each => each.textContent),
      })
    })
  }
  return found
}
"""
PAPER = "getComputedStyle(document.documentElement).backgroundColor"
# The lowest elements that are wider than the window, where nothing above scrolls sideways.
TOO_WIDE = """
() => [...document.querySelectorAll("body *")].filter(element => {
  if (element.getBoundingClientRect().right <= innerWidth + 1) return false
  for (let each = element; each; each = each.parentElement)
    if (["auto", "scroll"].includes(getComputedStyle(each).overflowX)) return false
  return true
}).map(element => element.outerHTML.slice(0, 200))
"""


@pytest.fixture(scope="module")
def browser():
    """The system's browser, without a window."""
    from playwright.sync_api import sync_playwright

    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.fail(f"none of {', '.join(NAMES)} is on the PATH; install the system's chromium")
    # As root, or within a container of limited rights, it cannot make a sandbox of its own.
    sandbox = os.geteuid() != 0
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, chromium_sandbox=sandbox)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def pages(tmp_path_factory):
    """The pages of runs by either clock, and a comparison of two."""

    def make(folder):
        def flstream(*words):
            subprocess.run([sys.executable, "-m", "flstream", *words], cwd=folder, check=True)

        job = ["simulate", str(ROOT / "jobs" / "digits"), "-r", "3", "-q"]
        flstream(*job, "--run-dir", "one")
        flstream(*job, "--run-dir", "simulated", "--set", "time.clock=virtual")
        shutil.copytree(folder / "one", folder / "two")
        flstream("report", "one", "two", "--output", "comparison.html")

    folder = made_once(tmp_path_factory, "pages", make)
    names = {"run": "one/report.html", "simulated": "simulated/report.html"}
    names["comparison"] = "comparison.html"
    return {kind: folder / name for kind, name in names.items()}


def opened(browser, path, width, scheme="light"):
    """A page in the browser, and what it complains of and asks for."""
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    complaints, requests = [], []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(path.as_uri())
    return page, complaints, requests


def brightness(page):
    return sum(map(int, re.findall(r"\d+", page.evaluate(PAPER))[:3])) / 3


SIZES = [(390, "light"), (1280, "dark"), (390, "dark"), (1280, "light")]


@first_and_nightly(
    ("kind", "width", "scheme"),
    [(kind, *size) for size in SIZES for kind in ("simulated", "run", "comparison")],
)
def test_the_page_is_sound_and_can_be_read(browser, pages, kind, width, scheme):
    page, complaints, requests = opened(browser, pages[kind], width, scheme)
    for summary in page.locator("summary").all():
        if summary.is_visible() and not summary.evaluate("each => each.parentElement.open"):
            summary.click()
            assert summary.evaluate(
                "each => each.parentElement.open"
                " && each.parentElement.getBoundingClientRect().height"
                " > each.getBoundingClientRect().height"
            )
    assert complaints == []
    assert [url for url in requests if not url.startswith("data:")] == [page.url]

    axes = page.locator(".axis").all()
    assert len(axes) == (3 if kind == "simulated" else 0)
    for axis in axes or [None]:
        if axis is not None:
            axis.check()
        assert page.evaluate(TOO_WIDE) == []
        texts = page.evaluate(TEXTS)
        assert len(texts) >= 20
        assert [each for each in texts if each["height"] < LEAST_HEIGHT] == []
        assert [each for each in texts if each["contrast"] < LEAST_CONTRAST] == []
        cut = [each["says"] for each in texts if each["cut"] or each["overlaps"]]
        assert cut == []
    page.emulate_media(color_scheme="light")
    light = brightness(page)
    page.emulate_media(color_scheme="dark")
    assert brightness(page) < 60 < 200 < light
    page.close()


def test_a_chart_shows_its_values_to_the_pointer_to_fingers_and_to_arrow_keys(browser, pages):
    page, complaints, _ = opened(browser, pages["run"], 390)
    chart, tip = page.locator("svg.chart").first, page.locator("[role=status]")
    scores = json.loads((pages["run"].parent / "summary.json").read_text())["metrics"]
    expected = {row["round"]: row["accuracy"] for row in scores}

    def shown():
        noun, number, name, value = tip.inner_text().split()
        return noun, name, float(value) == pytest.approx(expected[int(number)], abs=1e-4)

    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.9, box["y"] + box["height"] / 2)
    assert shown() == ("round", "accuracy", True)
    assert tip.bounding_box()["x"] + tip.bounding_box()["width"] <= 390
    page.mouse.move(0, 0)
    assert not tip.is_visible()
    chart.focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft"):
        page.keyboard.press(key)
    assert shown() == ("round", "accuracy", True)
    page.keyboard.press("Escape")
    assert not tip.is_visible()
    touch = {"pointerType": "touch", "clientX": box["x"] + 200}
    chart.dispatch_event("pointerdown", touch)
    chart.dispatch_event("pointerleave", touch)
    assert shown() == ("round", "accuracy", True)
    for other in page.locator("svg.chart").all():  # each has something to show
        other.press("ArrowRight")
        assert len(tip.inner_text().splitlines()) > 1
    assert complaints == []
    page.close()
