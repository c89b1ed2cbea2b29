"""The page: well-formed, whole in itself, true to summary.json, and safe from what it shows."""

import re
from html.parser import HTMLParser
from pathlib import Path

import drawn
import pytest
from run_directories import (
    BEGAN,
    JOB,
    MIB,
    ended,
    finished_run,
    one_round,
    samples,
    started,
    summary_of,
    write_run,
)

from flstream.report.html.comparison_page import comparison_page, run_labels
from flstream.report.html.run_page import headline, run_page
from flstream.report.record.run import read_run
from flstream.telemetry.events import (
    EffectDone,
    RoundStarted,
    RunResumed,
    SiteFailed,
    SiteLog,
    Warned,
)

VOID = {"meta", "link", "br", "img", "source", "input", "hr"}
HOSTILE = "<script>alert('x')</script> & \"quoted\" {{ 7 * 191 }}"


class Page(HTMLParser):
    """A page taken apart: it fails where a tag is not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.source = text
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.rows: list[list[str]] = []
        self.charts: list[list[str]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
        elif tag in ("img", "source"):
            self.charts.append(drawn.texts(str(attrs)))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes another tag"

    def handle_data(self, data: str) -> None:
        self.texts.append(data)
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data.strip()

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run that finished."""
    return read_run(finished_run(tmp_path_factory.mktemp("page") / "run"))


@pytest.fixture(scope="module")
def page(run):
    """The page of that run."""
    return Page(run_page(run))


def test_the_page_is_well_formed_and_loads_nothing(page):
    assert not {tag for tag, _ in page.tags} & {"script", "iframe", "object", "embed", "svg"}
    for _, attributes in page.tags:
        for name in ("src", "href", "xlink:href", "action", "srcset"):
            assert (attributes.get(name) or "#").startswith(("#", "data:"))
        assert not any(name.startswith("on") for name in attributes)
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(set(ids)) == len(ids)
    assert not re.search(r"http|@import|url\((?!#)", page.source)
    images = [attributes for tag, attributes in page.tags if tag == "img"]
    assert len(images) == 5
    assert all(each["alt"] for each in images)
    assert dict(page.tags[:4])["html"]["lang"] == "en"
    assert any(attributes.get("name") == "viewport" for _, attributes in page.tags)


def test_the_figures_are_those_of_the_summary(run, page):
    assert "3 rounds with 2 sites in 38 s; the server stayed within 16 MiB" in headline(run)
    for text in (headline(run), "accuracy 0.8000 best, after round 3", "70 MiB 1.09 times the"):
        assert text in page.text
    rows = {row[0]: row[1:] for row in page.rows}
    assert rows["server"] == ["100 MiB", "116 MiB", "16 MiB", "30 MiB"]
    assert rows["2"] == ["0.7000", "0.5000", "2.00", "5.00", "2.50", "0.50", "1.00"]
    assert rows["train"] == ["15.00", "39%"]
    assert rows["start-up, and between the phases"] == ["5.00", "13%"]
    assert rows["down, to the sites"] == ["18", "192", "6", "3.00", "128 MiB/s", "384 MiB"]
    assert rows["up, to the server"] == ["6", "96", "0", "0.75", "256 MiB/s", "192 MiB"]
    assert rows["site-2"] == ["3", "15.00", "5.00", "6.00", "0", "60", "66.7%"]
    assert rows["clients.count"] == ["2", "How many clients (sites) the job has."]


def test_nothing_that_a_run_says_becomes_part_of_the_page(tmp_path):
    sites = ["site-1", HOSTILE]
    summary = summary_of(status="failed", error=f"it failed: {HOSTILE}")
    summary.job = HOSTILE
    summary.warnings = summary.benched = [HOSTILE]
    summary.metrics = [{HOSTILE: 0.5, "round": 1, "train": {HOSTILE: 1.0}}]
    told = {"round": 1, "site": HOSTILE, "time": BEGAN + 14}
    said = [
        SiteFailed(reason=HOSTILE, **told),
        SiteLog(key=HOSTILE, value=0.5, **told),
        SiteLog(key="note", value=None, text=HOSTILE, **told),
    ]
    folder = write_run(
        tmp_path / HOSTILE.replace("/", "|"),
        [*started(sites=sites), *one_round(1, BEGAN + 2, sites, HOSTILE), *said],
        samples(BEGAN + 1, BEGAN + 15, HOSTILE, 200 * MIB),
        summary,
        JOB.replace('"digits"', f'"{HOSTILE}"'),
    )
    (folder / "versions.json").write_text('{"<script>": "<script>"}')
    record = read_run(folder)
    for text in (run_page(record), comparison_page([record, record])):
        page = Page(text)
        assert "script" not in {tag for tag, _ in page.tags}
        assert HOSTILE in page.text
        # A chart elides what is long.
        assert any(text.startswith("<scrip") for chart in page.charts for text in chart)
        assert "1337" not in page.text


def test_a_run_that_was_cut_off_says_how_much_counts_and_where_it_went_on(tmp_path):
    fields = {"name": "fold", "request": "", "arguments": "", "is_final": True}
    effects = [EffectDone(effect=n, round=2, time=BEGAN + 14 + n, **fields) for n in (1, 2)]
    folder = write_run(
        tmp_path / "run",
        [
            *started(),
            *one_round(1, BEGAN + 2),
            RoundStarted(round=2, sites=["site-1"], time=BEGAN + 14),
            *effects,
            RunResumed(round=1, effect=1, time=BEGAN + 900),
            RoundStarted(round=2, sites=["site-1"], time=BEGAN + 901),
            effects[1],
            Warned(message="a warning", time=BEGAN + 901),
            *ended(BEGAN + 902, "failed", "site-1: client.py, line 5 raised ValueError"),
        ],
        samples(BEGAN, BEGAN + 20, "server", 110 * MIB),
    )
    (folder / "sites" / "site-1").mkdir(parents=True)
    (folder / "sites" / "site-1" / "split.json").write_text('{"cats": 7}')
    text = Page(run_page(read_run(folder))).text
    for words in (
        "Round 2 was under way; a resume does it again.",
        "went on after effect 1 of its workflow",
        "the run was resumed there",
        "Warning: a warning",
        "Failed after 1 of 3 rounds with 2 sites",
        "site-1: client.py, line 5 raised ValueError",
        "Examples of each label at each site",
    ):
        assert words in text


def test_a_run_without_a_round_has_no_charts_of_rounds(tmp_path):
    folder = write_run(tmp_path / "run", [*started(), *ended(BEGAN + 2, "failed", "no")])
    page = Page(run_page(read_run(folder)))
    assert page.text.count("No round was completed.") == 2
    assert "No site was asked for anything." in page.text
    assert "Logged values" not in page.text
    assert page.charts == []


def test_of_many_sites_the_failed_and_the_slowest_come_first(tmp_path):
    sites = [f"site-{number}" for number in range(1, 201)]
    failed = SiteFailed(round=1, site="site-177", reason="no data", time=BEGAN + 14)
    events = [*started(sites=sites), *one_round(1, BEGAN + 2, sites), failed]
    text = run_page(read_run(write_run(tmp_path / "run", events)))
    shown, _, rest = text.partition("188 more sites")
    names = re.findall(r"<th scope=\"row\">(site-\d+)</th>", shown)[-12:]
    assert names == ["site-177", *(f"site-{number}" for number in range(1, 12))]
    assert "site-200" in rest
    assert "no data" in Page(text).text
    # A chart of all processes would be unreadable, and the page too large to send.
    assert len(text) < 600_000


def test_runs_side_by_side_show_what_is_different(tmp_path):
    runs = [finished_run(tmp_path / name) for name in ("one", "other")]
    (runs[1] / "job.conf").write_text(JOB.replace('"pull"', '"native"'))
    text = comparison_page([read_run(run) for run in runs])
    page = Page(text)
    rows = {row[0]: row[1:] for row in page.rows}
    assert rows["streaming.mode"] == ['"pull"', '"native"']
    assert rows["clients.count"] == ["2"]
    assert rows["best"] == ["0.8000 accuracy (round 3)"] * 2
    assert rows["server over idle"] == ["16 MiB"] * 2
    assert rows["train"] == ["15.00 s"] * 2
    assert text.count('<tr class="different">') == 1
    assert {"accuracy", "round", "one 0.8000", "other 0.8000"} <= set(page.charts[0])


def test_runs_of_one_name_are_told_apart_by_the_folders_above():
    paths = [Path("/a/x/run"), Path("/a/y/run"), Path("/b/y/other")]
    assert run_labels(paths) == ["x/run", "y/run", "y/other"]
    assert run_labels([Path("/a/x"), Path("/a/x")]) == ["x", "x"]
