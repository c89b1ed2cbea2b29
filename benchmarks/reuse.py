"""Measure what is not sent since the receiver has it: `streaming.reuse = auto` beside `off`.

Two jobs, without any training: each site adds its own numbers to adapters of 1% of the model's
bytes, or to all of it, of which nothing can be reused. The settings alternate. Of bytes, each way's
share of the model is taken, by round; of seconds the median of each run's rounds but the first,
which also makes memory ready, and of runs one after the other the median of their ratios. The final
models are compared.

    python benchmarks/reuse.py [--adapters 1GiB] [--adapter-clients 4] [--adapter-repeat 3]
        [--full 1GiB] [--full-clients 2] [--repeat 5] [--settings KEY=VALUE ...] [--json FILE]

At its defaults it takes ten minutes, 12 GiB of memory and 4 GiB on disk.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any, NamedTuple

from rows import Row, print_columns, print_table, scratch_folder
from simulating import MeasuredRun, run

from flstream.units import format_bytes, parse_bytes

JOB = Path(__file__).parent / "reuse_job" / "job.conf"
SETTINGS = "off", "auto"
# Most of a model's bytes that move each way in a round, to and from a site, with 1% trained.
MOST_MOVED = 0.02
# Most times as long as without that a round may take in which there is nothing to reuse.
MOST_TIMES = 1.05


class Job(NamedTuple):
    """A job to measure.

    Attributes:
        trained: What the sites change: adapters, or all.
        size: Size of the model.
        clients: Number of sites.
        repeat: Number of runs with each setting.
    """

    trained: str
    size: str
    clients: int
    repeat: int

    @property
    def settings(self) -> list[str]:
        """Settings of its runs."""
        return [
            f"clients.count={self.clients}",
            f"model.args.size={self.size}",
            f"train.args.size={self.size}",
            f"train.args.trained={self.trained}",
            "checkpoints.keep=1",  # so that the next one takes its pages
        ]

    def __str__(self) -> str:
        size = format_bytes(parse_bytes(self.size))
        return f"{self.trained} of {size} x {self.clients}"


def rounds_of(done: MeasuredRun) -> list[dict[str, Any]]:
    """Return the records of a run's rounds."""
    return [event for event in done.events if event["kind"] == "round_finished"]


def seconds_of(event: dict[str, Any]) -> float:
    """Return the seconds of a round."""
    keys = ("download", "train", "upload_and_fold", "checkpoint")
    return float(sum(event[key] for key in keys))


def share_of(done: MeasuredRun, number: int, way: str) -> float:
    """Return the share of the model that moves one way in a round, to or from a site."""
    event = rounds_of(done)[number]
    model = done.summary["model"]["bytes"]
    return float(event[way]["bytes"] / (model * done.summary["clients"]))


def measure(job: Job, more: list[str]) -> dict[str, list[MeasuredRun]]:
    """Run a job with both settings, which alternate, each of them first every second time."""
    done: dict[str, list[MeasuredRun]] = {reuse: [] for reuse in SETTINGS}
    with scratch_folder() as name:
        for number in range(job.repeat):
            for reuse in SETTINGS[:: 1 if number % 2 else -1]:
                print(f"measuring: {job}, {reuse}", file=sys.stderr, flush=True)
                settings = [*job.settings, f"streaming.reuse={reuse}", *more]
                done[reuse].append(run(str(JOB), Path(name).absolute(), *settings))
    return done


def round_lines(job: Job, done: dict[str, list[MeasuredRun]]) -> list[tuple[str, ...]]:
    """Return a line of a table for each round of a job, with each setting."""
    lines = []
    for reuse, runs in done.items():
        for number, _ in enumerate(rounds_of(runs[0])):
            seconds = statistics.median(seconds_of(rounds_of(each)[number]) for each in runs)
            shares = (
                statistics.median(share_of(each, number, way) for each in runs)
                for way in ("down", "up")
            )
            cells = *(f"{share:.2%}" for share in shares), f"{seconds:.2f} s"
            lines.append((str(job), reuse, f"{number + 1}", *cells))
    return lines


def seconds_row(job: Job, done: dict[str, list[MeasuredRun]], most: float | None) -> Row:
    """Return a row with a round's seconds with both settings: medians of runs, and of pairs."""
    seconds = {
        reuse: [statistics.median(map(seconds_of, rounds_of(each)[1:])) for each in runs]
        for reuse, runs in done.items()
    }
    auto, off = (f"{statistics.median(seconds[reuse]):.2f} s" for reuse in ("auto", "off"))
    # Of runs one after the other: what else the machine does changes from minute to minute.
    pairs = zip(seconds["auto"], seconds["off"], strict=True)
    ratio = statistics.median(one / other for one, other in pairs)
    return Row(f"a round, {job}", auto, f"{off} off", ratio, most=most)


def moved_rows(job: Job, done: dict[str, list[MeasuredRun]]) -> list[Row]:
    """Return rows with the largest share of a model that moves each way after the first round."""
    rows = []
    for way in ("down", "up"):
        share = max(
            share_of(each, number, way)
            for each in done["auto"]
            for number in range(1, len(rounds_of(each)))
        )
        what = f"moved {way} in a round, {job}"
        limit = f"{MOST_MOVED:.0%} of the model"
        rows.append(Row(what, f"{share:.2%}", limit, share / MOST_MOVED, most=1.0))
    return rows


def main() -> None:
    """Measure, and print two tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--adapters", default="1GiB", help="model of which adapters are trained")
    parser.add_argument("--adapter-clients", type=int, default=4)
    parser.add_argument("--adapter-repeat", type=int, default=3)
    parser.add_argument("--full", default="1GiB", help="model of which all is trained")
    parser.add_argument("--full-clients", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--settings", nargs="*", default=[], help="more settings of the runs")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    adapters = Job("adapters", options.adapters, options.adapter_clients, options.adapter_repeat)
    full = Job("all", options.full, options.full_clients, options.repeat)
    rows: list[Row] = []
    lines: list[tuple[str, ...]] = [("trained", "reuse", "round", "down", "up", "seconds")]
    differ: list[str] = []
    for job in (adapters, full):
        if not job.repeat:
            continue
        done = measure(job, options.settings)
        lines += round_lines(job, done)
        rows += moved_rows(job, done) if job is adapters else []
        rows.append(seconds_row(job, done, MOST_TIMES if job is full else None))
        digests = {each.summary["model"]["digest"] for runs in done.values() for each in runs}
        differ += [f"{job}: {sorted(digests)}"] if len(digests) > 1 else []
    print_columns(lines)
    print()
    print_table(rows)
    print(f"models differ: {differ}" if differ else "all models are the same")
    if options.json:
        records = [row._asdict() for row in rows]
        options.json.write_text(json.dumps({"rounds": lines, "rows": records}, indent=1) + "\n")
    if differ or not all(row.is_met for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
