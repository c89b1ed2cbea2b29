"""Measure DiLoCo and its streaming form beside data-parallel training, over links of any rate.

    python benchmarks/diloco.py [--quick] [--markdown FILE] [--pictures FOLDER]

A point is one run of jobs/diloco: a loss after some tokens, or a few exchanges over paced links.
Points are kept in benchmarks/.diloco, and the same command continues with those that are missing.
All points take about 90 minutes on two quiet cores; with ``--quick``, fewer tokens take ten.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from diloco_figures import QUICK, SITES, VARIANTS, Plan, Result, Variant, draw, tables
from rows import machine
from running import JOBS, MeasuredRun, run

FOLDER = Path(__file__).parent / ".diloco"
SCRIPTS = Path(__file__).parent / "diloco_job"


class Points:
    """Points that were measured, in a file; those of a job with other files do not count."""

    def __init__(self, path: Path, job: Path) -> None:
        self._path, self._job = path, job
        content = b"".join(file.read_bytes() for file in sorted(job.glob("*.*")))
        self._digest = hashlib.sha256(content).hexdigest()[:8]
        self._known = json.loads(path.read_text()) if path.exists() else {}

    def measure(self, name: str, settings: Sequence[str], reduce: Any) -> dict[str, Any]:
        """Return the point of these settings, and run the job if it is not known yet."""
        key = " ".join([self._digest, *settings])
        if key not in self._known:
            print(f"measuring: {name}", file=sys.stderr, flush=True)
            measured = run(self._job, self._job.parent, *settings, "checkpoints.keep=1")
            self._known[key] = reduce(measured)
            self._path.parent.mkdir(exist_ok=True)
            self._path.write_text(json.dumps(self._known, indent=1) + "\n")
        point: dict[str, Any] = self._known[key]
        return point


def loss_of(variant: Variant, measured: MeasuredRun) -> dict[str, Any]:
    """Return the losses on held-out text by inner step, and the bytes of the sites."""
    events = measured.events
    if variant.is_data_parallel:
        losses = {e["step"]: e["value"] for e in events if e.get("key") == "held out"}
    else:
        losses = {
            e["round"] * variant.inner_steps // variant.fragments: e["metrics"]["loss"]
            for e in events
            if e["kind"] == "evaluated" and "loss" in e["metrics"] and e["round"]
        }
    scored = sum(event["down"]["bytes"] for event in events if event["kind"] == "evaluated")
    transfer = measured.summary.transfer
    return {
        "losses": sorted(losses.items()),
        "down": (transfer.down.bytes - scored) / SITES,
        "up": transfer.up.bytes / SITES,
    }


def utilisation_of(variant: Variant, measured: MeasuredRun) -> dict[str, Any]:
    """Return the share of the time that sites have trained, and the seconds and bytes of a step.

    Sites send the mean seconds of a step with their updates. The time is that between two updates
    of a site, so the first one's does not count, which the initial model comes before.
    """
    events, trained, elapsed = measured.events, 0.0, 0.0
    updates = [event for event in events if event["kind"] == "site_update"]
    last = dict[str, float]()
    for update in updates:
        site, seconds = update["site"], update["metrics"]["seconds"]
        if site in last:
            trained += seconds * variant.inner_steps / variant.fragments
            elapsed += update["time"] - last[site]
        last[site] = update["time"]
    late = [e["bytes"] for e in events if e["kind"] == "late_received"]
    rounds = [e for e in events if e["kind"] == "round_finished"]
    down = late or [e["down"]["bytes"] / SITES for e in rounds[1:]]
    up = [e["up"]["bytes"] / SITES for e in rounds]
    return {
        "share": trained / elapsed,
        "step": statistics.mean(update["metrics"]["seconds"] for update in updates),
        "down": statistics.mean(down),
        "up": statistics.mean(up),
        "largest": max(down) + max(up),
    }


def measure_all(plan: Plan, points: Points, job: Path) -> Iterator[Result]:
    """Measure all variants."""
    for variant in VARIANTS:
        runs = [
            points.measure(
                f"{variant.name}, loss, seed {seed}",
                variant.overrides(plan.steps, seed, plan.scores),
                lambda measured, variant=variant: loss_of(variant, measured),
            )
            for seed in range(7, 7 + min(plan.seeds, variant.seeds))
        ]
        single = variant.is_data_parallel
        steps = plan.single_steps if single else plan.exchanges * variant.inner_steps
        paced = {
            rate: points.measure(
                f"{variant.name}, {rate} Mbit/s",
                [
                    *variant.overrides(steps, 7, 0),
                    f"network={{up={rate} Mbit, down={rate} Mbit}}",
                ],
                lambda measured, variant=variant: utilisation_of(variant, measured),
            )
            for rate in plan.rates
        }
        yield Result(variant, runs, paced)


def main() -> None:
    """Measure what is missing, and print the tables."""
    parser = argparse.ArgumentParser(description="DiLoCo beside data-parallel training.")
    parser.add_argument("--quick", action="store_true", help="fewer tokens, seeds and rates")
    parser.add_argument("--markdown", metavar="FILE", type=Path, help="write the tables there, too")
    parser.add_argument("--pictures", metavar="FOLDER", type=Path, help="draw two charts there")
    options = parser.parse_args()
    plan, name = (QUICK, "quick") if options.quick else (Plan(), "full")
    with tempfile.TemporaryDirectory(prefix="flstream-bench-", dir=".") as folder:
        job = Path(folder) / "job"
        shutil.copytree(JOBS / "diloco", job)
        for script in SCRIPTS.glob("*.py"):
            shutil.copy(script, job)
        points = Points(FOLDER / f"{name}.json", job)
        results = list(measure_all(plan, points, job))
    text = f"{machine()}\n\n{tables(results, plan)}"
    print(text, flush=True)
    if options.markdown is not None:
        options.markdown.write_text(text)
    if options.pictures is not None:
        draw(results, options.pictures)


if __name__ == "__main__":
    main()
