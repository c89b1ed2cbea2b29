"""The page: well-formed, whole in itself, true to its runs, and safe from what it shows."""

import csv
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from msgspec.structs import replace
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

import flstream
from flstream.errors import UsageError
from flstream.report.page import (
    newest_first,
    run_cell,
    run_page,
    runs_below,
    write_page,
)
from flstream.report.run_groups import series_color
from flstream.report.run_record import read_run
from flstream.report.text import path_labels
from flstream.runs.run_directory import RunDirectory
from flstream.runs.summary import SiteFailure
from flstream.telemetry.events import RoundStarted, RunResumed, SiteFailed, SiteLog, Warned

VOID = {"meta", "wbr", "link", "br", "img", "path", "rect", "circle"}
HOSTILE = "<script>alert('x')</script> & \"quoted\" {{ 7 * 191 }}"
CHART_SCRIPT = (Path(flstream.__file__).parent / "report/templates/chart.js").read_text().strip()


class Page(HTMLParser):
    """A page taken apart: it fails where a tag is not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.source = text
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.rows: list[list[str]] = []
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

    @property
    def by_name(self) -> dict[str, list[str]]:
        return {row[0]: row[1:] for row in self.rows}

    @property
    def charts(self) -> list[str]:
        return [str(attrs["aria-label"]) for tag, attrs in self.tags if tag == "svg"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run that finished."""
    return read_run(finished_run(tmp_path_factory.mktemp("page") / "run"))


@pytest.fixture(scope="module")
def page(run):
    """The page of the finished run."""
    return Page(run_page([run]))


def test_the_page_is_well_formed_and_loads_nothing(page):
    assert not {tag for tag, _ in page.tags} & {"iframe", "object", "embed", "img"}
    assert [attributes for tag, attributes in page.tags if tag == "script"] == [{}]
    for _, attributes in page.tags:
        for name in ("src", "href", "xlink:href", "action", "srcset"):
            assert (attributes.get(name) or "#").startswith(("#", "data:"))
        assert not any(name.startswith("on") for name in attributes)
    assert not re.search(r"http:|https:|@import|url\(", page.source)
    kinds = ["accuracy", "train loss", "memory over idle (RSS)", "resident memory (RSS)"]
    assert page.charts == [*kinds, "seconds of each round"]
    assert dict(page.tags[:4])["html"]["lang"] == "en"
    assert any(attributes.get("name") == "viewport" for _, attributes in page.tags)


def test_the_figures_are_those_of_the_summary(run, page):
    assert "3 rounds with 2 sites in 38 s; the server stayed within 16 MiB over" in page.text
    for text in ("accuracy 0.8000 best, after round 3", "70 MiB 1.09 times the"):
        assert text in page.text
    rows = page.by_name
    assert rows["server"] == ["100 MiB", "116 MiB", "16 MiB", "30 MiB"]
    assert rows["2"] == ["0.7000", "0.5000", "2.00", "5.00", "2.50", "0.50", "1.00"]
    assert rows["train"] == ["15.00", "39%"]
    assert rows["start-up, and between the phases"] == ["5.00", "13%"]
    assert rows["down"] == ["384 MiB", "18", "192", "6", "3.00", "128 MiB/s"]
    assert rows["up"] == ["192 MiB", "6", "96", "0", "0.75", "256 MiB/s"]
    assert rows["site-2"] == ["3", "15.00", "5.00", "6.00", "0", "60", "67%"]
    assert rows["clients.count"][0] == "2"


def test_a_notebook_shows_figures_rounds_and_charts(run):
    cell = Page(run_cell(run.path))
    assert cell.by_name["2"][:2] == ["0.7000", "0.5000"]
    assert cell.charts == ["accuracy", "train loss", "memory over idle (RSS)"]
    assert "3 rounds with 2 sites in 38 s; the server stayed within 16 MiB" in cell.text


def test_nothing_that_a_run_says_becomes_part_of_the_page(tmp_path):
    sites = ["site-1", HOSTILE]
    summary = summary_of(status="failed", error=f"it failed: {HOSTILE}")
    summary.job = HOSTILE
    summary.warnings = summary.benched = [HOSTILE]
    summary.metrics = [{HOSTILE: 0.5, "round": 1, "train": {HOSTILE: 1.0}}]
    where = {"round": 1, "site": HOSTILE, "time": BEGAN + 14}
    events = [
        SiteFailed(reason=HOSTILE, **where),
        SiteLog(key=HOSTILE, value=0.5, **where),
        SiteLog(key="note", value=None, text=HOSTILE, **where),
    ]
    folder = write_run(
        tmp_path / HOSTILE.replace("/", "|"),
        [*started(sites=sites), *one_round(1, BEGAN + 2, sites, HOSTILE), *events],
        samples(BEGAN + 1, BEGAN + 15, HOSTILE, 200 * MIB),
        summary,
        JOB.replace('"digits"', f'"{HOSTILE}"'),
    )
    (folder / "versions.json").write_text('{"<script>": "<script>"}')
    (folder / "sites" / HOSTILE.replace("/", "|")).mkdir(parents=True)
    (folder / "sites" / HOSTILE.replace("/", "|") / "split.json").write_text('{"<script>": 7}')
    record = read_run(folder)
    for text in (run_page([record]), run_page([record, record]), run_cell(folder)):
        page = Page(text)
        scripts = re.findall("<script>(.*?)</script>", text, re.DOTALL)
        assert [script.strip() for script in scripts] in ([CHART_SCRIPT], [])
        assert HOSTILE in page.text
        assert "1337" not in page.text


def test_a_run_that_was_cut_off_says_where_it_resumed_and_what_was_wrong(tmp_path):
    folder = write_run(
        tmp_path / "run",
        [
            *started(),
            *one_round(1, BEGAN + 2),
            RunResumed(round=1, effect=1, time=BEGAN + 900),
            Warned(message="a warning", time=BEGAN + 901),
            RoundStarted(round=2, sites=["site-1"], time=BEGAN + 901),
            *ended(BEGAN + 902, "failed", "site-1: client.py, line 5 raised ValueError"),
        ],
        samples(BEGAN, BEGAN + 20, "server", 110 * MIB),
    )
    (folder / "sites" / "site-1").mkdir(parents=True)
    (folder / "sites" / "site-1" / "split.json").write_text('{"cats": 7}')
    page = Page(run_page([read_run(folder)]))
    for words in (
        "Round 2 was under way",
        "The run was interrupted, and resumed",
        "Warning: a warning",
        "Failed after 1 of 3 rounds with 2 sites",
        "site-1: client.py, line 5 raised ValueError",
    ):
        assert words in page.text
    assert "Examples of each label at each site" in page.text
    assert ["site-1", "7"] in page.rows
    assert 'class="mark"' in page.source


def test_a_run_without_a_round_has_no_charts_of_rounds(tmp_path):
    folder = write_run(tmp_path / "run", [*started(), *ended(BEGAN + 2, "failed", "no")])
    page = Page(run_page([read_run(folder)]))
    assert "No round was completed." in page.text
    assert "No site was asked for anything." in page.text
    assert "Logged values" not in page.text
    assert page.charts == []


def test_of_many_sites_and_rounds_the_ends_are_shown_and_the_rest_counted(tmp_path):
    sites = [f"site-{number}" for number in range(1, 201)]
    failed = SiteFailed(round=1, site="site-177", reason="no data", time=BEGAN + 14)
    events = [*started(sites=sites), *one_round(1, BEGAN + 2, sites), failed]
    summary = summary_of(10_000)
    summary.failures = [SiteFailure(1, "site-177", "no data")]
    text = run_page([read_run(write_run(tmp_path / "run", events, (), summary))])
    page = Page(text)
    names = [row[0] for row in page.rows if len(row) > 5 and row[0].startswith("site-")]
    assert names[:3] == ["site-177", "site-1", "site-2"]
    assert ["... 140 rows left out"] in page.rows
    assert any(row[0].startswith("... 9,9") for row in page.rows)
    assert "no data" in page.text
    assert len(text) < 600_000


def test_a_page_says_whether_its_run_goes_on_or_was_cut_off(tmp_path):
    folder = write_run(tmp_path / "run", [*started(), *one_round(1, BEGAN + 2)])
    run = RunDirectory(folder)
    with run.in_use():
        assert write_page([folder]) == run.report
        assert "Going on after 1 of 3 rounds" in run.report.read_text()
    page = write_page([folder]).read_text()
    assert "Cut off after 1 of 3 rounds" in page
    assert re.search(r"Written by flstream .* on \d{4}-\d\d-\d\d at \d\d:\d\d:\d\d UTC", page)


def test_runs_are_listed_from_the_newest_on_and_those_of_a_sweep_stay_together(tmp_path):
    names = ["sweep/lr=0.1,seed=7", "old", "sweep/lr=0.03,seed=7", "between", "new"]
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "sweep.json").touch()
    for number, name in enumerate(names):
        write_run(tmp_path / name, started(BEGAN + number))
    due = ["new", "between", "sweep/lr=0.03,seed=7", "sweep/lr=0.1,seed=7", "old"]
    runs = newest_first([read_run(path) for path in runs_below(tmp_path)])
    assert [str(run.path.relative_to(tmp_path)) for run in runs] == due
    with pytest.raises(UsageError, match="no run lies below"):
        runs_below(tmp_path / "new" / "sites")


def test_runs_side_by_side_show_what_is_different(tmp_path):
    runs = [finished_run(tmp_path / name) for name in ("one", "other")]
    (runs[1] / "job.conf").write_text(JOB.replace('"pull"', '"native"'))
    text = run_page([read_run(run) for run in runs])
    page = Page(text)
    assert page.by_name["streaming.mode"] == ['"pull"', '"native"']
    assert page.by_name["clients.count"] == ["2"]
    assert page.by_name["one"][:5] == ["finished", "3", "2", "0.8000", "3"]
    assert text.count("<tr class=different>") == 1
    assert {"one 0.8000", "other 0.8000"} <= {text.strip() for text in page.texts}
    assert "group" not in page.by_name


def test_runs_that_differ_in_their_seed_alone_are_a_mean_with_its_spread(tmp_path):
    runs = []
    for seed, accuracy in ((1, 0.7), (2, 0.8), (3, 0.9)):
        folder = finished_run(tmp_path / f"seed-{seed}")
        (folder / "job.conf").write_text(f"{JOB}seed = {seed}\n")
        record = read_run(folder)
        metrics = [{**row, "accuracy": accuracy} for row in record.summary.metrics]
        summary = replace(record.summary, seed=seed, metrics=metrics)
        (folder / "summary.json").write_text(summary.to_json())
        runs.append(read_run(folder))
    page = Page(run_page(runs))
    head, group = (page.rows[0], page.rows[1])
    assert group[head.index("last accuracy") :][:2] == ["0.8000", "0.1000"]
    assert "mean of 3 runs 0.8000" in page.text
    assert page.by_name["seed"] == ["1", "2", "3"]


def test_a_key_that_follows_the_seed_tells_no_groups_apart_and_a_mean_ends_with_its_first_run(
    tmp_path,
):
    runs = []
    for number, run in enumerate(swept(tmp_path, 4)):
        record = read_run(run)
        settings = record.summary.settings
        settings = {**settings, "train.args.split_seed": settings["seed"]}
        metrics = record.summary.metrics[: 2 if number == 0 else None]
        summary = replace(record.summary, settings=settings, metrics=metrics)
        (run / "summary.json").write_text(summary.to_json())
        runs.append(read_run(run, is_one_of_many=True))
    page = Page(run_page(runs))
    assert {"lr=0.1", "lr=1.0"} <= page.by_name.keys()
    ends = [row["round"] for row in runs[0].summary.metrics]
    line, *_ = re.findall(r'data-name="lr=0.1, mean of 2 runs" d="M([^"]*)"', page.source)
    assert [float(point.split()[0]) for point in line.split("L")] == ends


def swept(folder, count, rates=("0.1", "1.0")):
    """Run directories that differ in a rate and in their seed."""
    paths = []
    for number in range(count):
        path = finished_run(folder / f"run-{number}")
        record = read_run(path)
        rate, seed = rates[number % len(rates)], number // len(rates)
        settings = {"train.args.lr": rate, "seed": str(seed), "rounds": "9"}
        metrics = [
            {**row, "accuracy": float(rate) / 10 + seed / 1000} for row in record.summary.metrics
        ]
        best = replace(record.summary.best, value=float(rate))
        summary = replace(record.summary, seed=seed, metrics=metrics, settings=settings, best=best)
        (path / "summary.json").write_text(summary.to_json())
        (path / "report.html").write_text("its own page")
        paths.append(path)
    return paths


def test_groups_of_runs_have_their_mean_and_spread_and_a_csv_file(tmp_path):
    path = write_page(swept(tmp_path, 6), tmp_path / "study.html", group_by=["train.args.lr"])
    page = Page(path.read_text())
    head = next(row for row in page.rows if row[0] == "group")
    column = head.index("last accuracy") - 1
    assert "best accuracy" in head
    assert page.source.count("<tr class=best><th class=name scope=row>") == 1
    assert ": 6 runs side by side" in page.text
    assert page.by_name["lr=1.0"][column : column + 2] == ["0.1010", "0.0010"]
    assert page.by_name["lr=0.1"][0] == "3"
    assert "lr=1.0, mean of 3 runs 0.1010" in page.text
    assert 'data-name="lr=1.0, \N{PLUS-MINUS SIGN} sd" d="M1 0.102L' in page.source
    assert 'href="run-0/report.html"' in path.read_text()
    lines = path.with_suffix(".csv").read_text().splitlines()
    assert lines[0].startswith("run,train.args.lr,seed,status,")
    assert len(lines) == 7


def test_a_chart_has_the_eight_best_groups_and_the_details_of_many_runs_are_on_their_pages(
    tmp_path,
):
    rates = [f"{number}.0" for number in range(1, 12)]
    path = write_page(swept(tmp_path, 22, rates), tmp_path / "study.html")
    page = Page(path.read_text())
    assert "lr=11.0, mean of 2 runs" in page.text
    assert "lr=3.0, mean of" not in page.text
    assert len({series_color(place) for place in range(8)}) == 8
    assert "The 8 best of 11 are drawn" in page.text
    assert "are on the page of each run" in page.text
    assert page.by_name["lr=3.0"][0] == "2"


def test_groups_that_differ_in_their_fifth_key_alone_have_labels_of_their_own(tmp_path):
    paths = swept(tmp_path, 6, ["0.1"])
    for number, path in enumerate(paths):
        summary, group = read_run(path).summary, number // 2
        keys = {f"a.key{at}": str(group // 2) for at in range(4)} | {"a.key4": str(group)}
        settings = {**summary.settings, **keys, "seed": str(number % 2)}
        (path / "summary.json").write_text(replace(summary, settings=settings).to_json())
    page = Page(write_page(paths, tmp_path / "study.html").read_text())
    assert {"key0=0, key4=0", "key0=0, key4=1", "key0=1, key4=2"} <= page.by_name.keys()
    assert "a.key4" in (tmp_path / "study.csv").read_text().splitlines()[0]


def test_a_setting_that_some_runs_lack_tells_them_apart_too(tmp_path):
    paths = swept(tmp_path, 4, ["0.1"])
    for number, path in enumerate(paths):
        summary = read_run(path).summary
        own = {"workflow.args.mu": "0.1"} if number % 2 else {}
        script = f'"/home/me/{"prox" if number % 2 else "plain"}/client.py"'
        settings = {**summary.settings, **own, "seed": str(number // 2), "train.script": script}
        (path / "summary.json").write_text(replace(summary, settings=settings).to_json())
    page = Page(write_page(paths, tmp_path / "study.html").read_text())
    assert {"script=plain/client.py", "script=prox/client.py"} <= page.by_name.keys()
    assert "they differ in seed." in page.text
    rows = list(csv.DictReader((tmp_path / "study.csv").read_text().splitlines()))
    assert [row["workflow.args.mu"] for row in rows] == ["", "0.1", "", "0.1"]
    write_page(paths, tmp_path / "study.html", group_by=["train.args"])
    assert "they differ in seed, script, mu." in Page((tmp_path / "study.html").read_text()).text


def test_a_csv_file_of_somebody_else_is_left_alone(tmp_path):
    paths = swept(tmp_path, 2)
    (tmp_path / "study.csv").write_text("my,own,data\n")
    with pytest.raises(UsageError, match=r"study\.csv was not made by"):
        write_page(paths, tmp_path / "study.html")
    assert not (tmp_path / "study.html").exists()
    assert (tmp_path / "study.csv").read_text() == "my,own,data\n"
    with pytest.raises(UsageError, match=r"name it \.html"):
        write_page(paths, tmp_path / "other.csv")
    write_page(paths, tmp_path / "other.html")
    write_page(paths, tmp_path / "other.html")  # its own are written anew


def test_a_key_that_no_run_has_groups_nothing(tmp_path):
    paths = swept(tmp_path, 2)
    with pytest.raises(UsageError, match=r"--group-by train\.args\.rate"):
        write_page(paths, tmp_path / "study.html", group_by=["train.args.rate"])
    with pytest.raises(UsageError, match=r"--over train\.args: no run has this setting"):
        write_page(paths, tmp_path / "study.html", over="train.args")


def test_runs_of_one_name_are_told_apart_by_the_folders_above():
    paths = [Path("/a/x/run"), Path("/a/y/run"), Path("/b/y/other")]
    assert path_labels(paths) == ["x/run", "y/run", "y/other"]
    assert path_labels([Path("/a/x"), Path("/a/x")]) == ["x", "x"]
