"""Measure DiLoCo and its streaming form beside data-parallel training, over links of any rate.

    python benchmarks/diloco.py [--quick] [--losses] [--markdown FILE] [--pictures FOLDER]

A point is one run of jobs/diloco: a loss after some tokens, or a few exchanges over paced links.
All begin with the model of their seed that one process has pretrained, as DiLoCo's paper does.
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
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from diloco_figures import (
    PRETRAINED_LR,
    QUICK,
    ROWS,
    SITES,
    VARIANTS,
    Plan,
    Result,
    Variant,
    draw,
    tables,
)
from rows import machine
from running import JOBS, MeasuredRun, run

FOLDER = Path(__file__).parent / ".diloco"
SCRIPTS = Path(__file__).parent / "diloco_job"


class Points:
    """Points that were measured, in a file; those of a job with other files do not count."""

    def __init__(self, path: Path, job: Path, plan: Plan) -> None:
        self._path, self._job, self._plan = path, job, plan
        content = b"".join(file.read_bytes() for file in sorted(job.glob("*.*")))
        self._digest = hashlib.sha256(content).hexdigest()[:8]
        self._known = json.loads(path.read_text()) if path.exists() else {}

    def measure(self, name: str, settings: Sequence[str], reduce: Any) -> dict[str, Any]:
        """Return the point of these settings, and run the job if it is not known yet."""
        key = " ".join([self._digest, str(self._plan.pretrained), *settings])
        if key not in self._known:
            initial = self._pretrained(settings[0])
            print(f"measuring: {name}", file=sys.stderr, flush=True)
            own = (f"model.initial={initial}", "checkpoints.keep=1")
            measured = run(self._job, self._job.parent, *settings, *own)
            self._known[key] = reduce(measured)
            self._path.parent.mkdir(exist_ok=True)
            self._path.write_text(json.dumps(self._known, indent=1) + "\n")
        point: dict[str, Any] = self._known[key]
        return point

    def _pretrained(self, seed: str) -> Path:
        """Return the model of a seed with which all variants begin, made by one site of all text.

        It has trained for the tokens of as many steps, at a constant learning rate.
        """
        steps = self._plan.pretrained
        path = FOLDER.absolute() / f"{self._digest}-{steps}-{seed}.safetensors"
        if not path.exists():
            temporary = path.with_suffix(".tmp")
            print(f"pretraining: {seed}", file=sys.stderr, flush=True)
            FOLDER.mkdir(exist_ok=True)
            args = {"rows": SITES * ROWS, "lr": PRETRAINED_LR, "warmup": 30, "steps": 10**6}
            outer = {"inner_steps": steps, "learning_rate": 1, "momentum": 0, "evaluate_every": 0}
            run(
                self._job,
                self._job.parent,
                seed,
                "clients.count=1",
                "rounds=1",
                *(f"train.args.{key}={value}" for key, value in args.items()),
                *(f"workflow.args.{key}={value}" for key, value in outer.items()),
                check=lambda folder: shutil.copy(folder / "global.safetensors", temporary),
            )
            temporary.replace(path)
        return path


def exchanges_of(events: Sequence[Mapping[str, Any]]) -> tuple[list[float], list[float]]:
    """Return the bytes of a site's exchanges, down and up, without the initial model."""
    rounds = [e for e in events if e["kind"] == "round_finished"]
    late = [e["bytes"] for e in events if e["kind"] == "late_received"]
    down = late or [e["down"]["bytes"] / SITES for e in rounds[1:]]
    return down, [e["up"]["bytes"] / SITES for e in rounds]


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
    transfer, (down, up) = measured.summary.transfer, exchanges_of(events)
    return {
        "losses": sorted(losses.items()),
        "down": (transfer.down.bytes - scored) / SITES,
        "up": transfer.up.bytes / SITES,
        "largest": max(down, default=0.0) + max(up),
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
    down, up = exchanges_of(events)
    return {
        "share": trained / elapsed,
        "step": statistics.mean(update["metrics"]["seconds"] for update in updates),
        "down": statistics.mean(down),
        "up": statistics.mean(up),
    }


def measure_losses(plan: Plan, points: Points) -> list[Result]:
    """Measure the losses of all variants, of one seed after another."""
    results = [Result(variant, [], {}) for variant in VARIANTS]
    for seed in range(7, 7 + plan.seeds):
        for variant, runs, _ in results:
            if seed < 7 + variant.seeds:
                runs.append(
                    points.measure(
                        f"{variant.name}, loss, seed {seed}",
                        variant.overrides(plan.steps, seed, plan.scores),
                        partial(loss_of, variant),
                    )
                )
    return results


def measure_rates(plan: Plan, points: Points, results: Sequence[Result]) -> None:
    """Measure the utilisation of all variants over paced links, which takes a quiet machine."""
    for variant, _, paced in results:
        single = variant.is_data_parallel
        steps = plan.single_steps if single else plan.exchanges * variant.inner_steps
        for rate in plan.rates:
            network = f"network={{up={rate} Mbit, down={rate} Mbit}}"
            paced[rate] = points.measure(
                f"{variant.name}, {rate} Mbit/s",
                [*variant.overrides(steps, 7, 0), network],
                partial(utilisation_of, variant),
            )


def main() -> None:
    """Measure what is missing, and print the tables."""
    parser = argparse.ArgumentParser(description="DiLoCo beside data-parallel training.")
    parser.add_argument("--quick", action="store_true", help="fewer tokens, seeds and rates")
    parser.add_argument("--losses", action="store_true", help="only these, on a busy machine, too")
    parser.add_argument("--markdown", metavar="FILE", type=Path, help="write the tables there, too")
    parser.add_argument("--pictures", metavar="FOLDER", type=Path, help="draw two charts there")
    options = parser.parse_args()
    plan, name = (QUICK, "quick") if options.quick else (Plan(), "full")
    with tempfile.TemporaryDirectory(prefix="flstream-bench-", dir=".") as folder:
        job = Path(folder) / "job"
        shutil.copytree(JOBS / "diloco", job)
        for script in SCRIPTS.glob("*.py"):
            shutil.copy(script, job)
        points = Points(FOLDER / f"{name}.json", job, plan)
        results = measure_losses(plan, points)
        if not options.losses:
            measure_rates(plan, points, results)
    text = f"{machine()}\n\n{tables(results, plan)}"
    print(text, flush=True)
    if options.markdown is not None:
        options.markdown.write_text(text)
    if options.pictures is not None:
        draw(results, options.pictures)


if __name__ == "__main__":
    main()
