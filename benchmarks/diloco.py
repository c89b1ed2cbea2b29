"""Measure DiLoCo and its streaming form beside data-parallel training, over links of any rate.

    python benchmarks/diloco.py [--quick] [--markdown FILE] [--pictures FOLDER]

A point is one run of jobs/diloco: a loss after some tokens, or a few exchanges over paced links.
Points are kept in benchmarks/.diloco, and the same command continues with those that are missing.
All points take about 90 minutes on two quiet cores; with ``--quick``, fewer tokens take ten.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rows import machine, markdown_table
from running import JOBS, MeasuredRun, run

from flstream.units import format_bytes

FOLDER = Path(__file__).parent / ".diloco"
SCRIPTS = Path(__file__).parent / "diloco_job"
SITES, ROWS, LENGTH = 4, 2, 128
RATES = (10, 100, 1000)
"""Rates of the paced links, in Mbit/s each way."""
SHARES = (0.5, 0.8, 0.9, 0.95, 0.99)
"""Shares of the time spent training for which the table has a rate."""


class Variant(NamedTuple):
    """A way to train.

    Attributes:
        name: Its name in the table.
        inner_steps: Inner steps after which each tensor is exchanged.
        fragments: Parts that are exchanged in turn.
        overlap: Inner steps that sites go on for while a fragment travels to them.
        settings: Further overrides of the job.
        seeds: How many seeds its loss is measured with.
        theirs: Loss at 35M parameters and Gbit/s for 80% compute utilisation at 1B, of Streaming
            DiLoCo (arXiv:2501.18512).
    """

    name: str
    inner_steps: int
    fragments: int = 1
    overlap: int = 0
    settings: tuple[str, ...] = ()
    seeds: int = 3
    theirs: tuple[str, str] = ("", "")

    @property
    def is_data_parallel(self) -> bool:
        """Whether gradients are exchanged, in each step."""
        return self.inner_steps == 1

    def overrides(self, steps: int, seed: int, scores: int) -> list[str]:
        """Return the overrides of a run of some inner steps, whose model is scored some times."""
        warmup = max(steps // 20, 1)
        common = [f"seed={seed}", f"train.args.steps={steps}", f"train.args.warmup={warmup}"]
        if self.is_data_parallel:
            every = steps // scores if scores else 0
            return [
                *common,
                f"rounds={steps + 1}",  # in the last one, the last mean gradient arrives
                "workflow={type=fedavg, args={evaluate_every=0}}",
                "train.script=data_parallel.py",
                f"train.args.score_every={every}",
                *self.settings,
            ]
        rounds = steps * self.fragments // self.inner_steps
        every = max(rounds // scores, 1) if scores else 0
        args = {
            "inner_steps": self.inner_steps,
            "fragments": self.fragments,
            "overlap": self.overlap,
            "weights": "equal",
            "evaluate_every": every,
        }
        own = [f"workflow.args.{key}={value}" for key, value in args.items()]
        return [*common, f"rounds={rounds}", *own, *self.settings]


VARIANTS = (
    Variant("data-parallel", 1, theirs=("3.51", "152.6")),
    Variant("DiLoCo, H = 30", 30, theirs=("3.54", "6.2")),
    Variant("DiLoCo, H = 100", 100, seeds=1),
    Variant(
        "streaming, P = 3, overlap, 4 bits",
        30,
        fragments=3,
        overlap=5,
        settings=(
            "workflow.args.alpha=0.5",
            "streaming.codecs={up=[int4], down=[int8], down_of=changes}",
        ),
        theirs=("3.53", "0.9"),
    ),
    Variant(
        "averaging, H = 100 (Photon)",
        100,
        settings=("workflow.args.learning_rate=1", "workflow.args.momentum=0"),
        seeds=1,
    ),
)


class Plan(NamedTuple):
    """Sizes of the measurement.

    Attributes:
        steps: Inner steps of a run whose loss is measured.
        scores: How often its model is scored.
        seeds: The most seeds of a variant.
        single_steps: Steps of a data-parallel run over a paced link.
        exchanges: Exchanges of the other runs there.
        rates: Rates of the links in Mbit/s.
    """

    steps: int = 2400
    scores: int = 10
    seeds: int = 3
    single_steps: int = 20
    exchanges: int = 3
    rates: tuple[int, ...] = RATES


QUICK = Plan(steps=600, scores=3, seeds=1, single_steps=10, exchanges=2, rates=(10, 100))


class Points:
    """Points that were measured, in a file."""

    def __init__(self, path: Path, job: Path) -> None:
        self._path, self._job = path, job
        self._known = json.loads(path.read_text()) if path.exists() else {}

    def measure(self, name: str, settings: Sequence[str], reduce: Any) -> dict[str, Any]:
        """Return the point of these settings, and run the job if it is not known yet."""
        key = " ".join(settings)
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
    late = sum(event["bytes"] for event in events if event["kind"] == "late_received")
    transfer = measured.summary.transfer
    return {
        "losses": sorted(losses.items()),
        "down": (transfer.down.bytes + late) / SITES,
        "up": transfer.up.bytes / SITES,
    }


def utilisation_of(variant: Variant, measured: MeasuredRun) -> dict[str, Any]:
    """Return the share of the time that sites have trained, and the seconds and bytes of a step.

    The time is that from the first training to the end of the last round; what a training waited
    for late tensors counts as no training.
    """
    events = measured.events
    changes = [e for e in events if e["kind"] == "site_state" and e["site"] != "evaluator"]
    began = min(e["time"] for e in changes if e["state"] == "training")
    ended = max(e["time"] for e in events if e["kind"] == "round_finished")
    trained, trainings, since = 0.0, 0, dict[str, float]()
    for event in changes:
        if event["state"] == "training":
            since[event["site"]] = event["time"]
        elif (start := since.pop(event["site"], None)) is not None and event["time"] <= ended:
            trained += event["time"] - start
            trainings += 1
    seconds = trained
    trained += sum(ended - start for start in since.values() if start < ended)
    waited = sum(e["waited"] for e in events if e["kind"] == "late_received")
    steps = trainings * variant.inner_steps / variant.fragments
    updates = [e["round"] for e in events if e["kind"] == "site_update"]
    late = [e["bytes"] for e in events if e["kind"] == "late_received"]
    rounds = [e for e in events if e["kind"] == "round_finished"]
    down = late or [e["down"]["bytes"] / SITES for e in rounds[1:]]
    up = [e["up"]["bytes"] / SITES for e in rounds]
    return {
        "share": (trained - waited) / (SITES * (ended - began)),
        "step": (seconds - waited) / steps,
        "down": statistics.mean(down),
        "up": statistics.mean(up),
        "largest": max(down) + max(up),
        "updates": len(updates),
    }


def computed_share(variant: Variant, point: Mapping[str, Any], rate: float) -> float:
    """Return the share of time in which a site trains over a link, from bytes and seconds.

    Args:
        variant: The variant.
        point: Bytes of an exchange each way, and seconds of a step, as journaled.
        rate: Rate of the link in Mbit/s, each way.
    """
    compute: float = point["step"] * variant.inner_steps / variant.fragments
    up, down = (point[way] * 8e-6 / rate for way in ("up", "down"))
    hidden = point["step"] * variant.overlap
    share: float = compute / (compute + up + max(0.0, down - hidden))
    return share


def rate_for(variant: Variant, point: Mapping[str, Any], share: float) -> float:
    """Return the least rate, in Mbit/s, at which a site trains for a share of the time."""
    low, high = 1e-3, 1e7
    for _ in range(80):
        middle = (low * high) ** 0.5
        low, high = (
            (low, middle) if computed_share(variant, point, middle) >= share else (middle, high)
        )
    return high


class Result(NamedTuple):
    """Figures of a variant.

    Attributes:
        variant: The variant.
        runs: Losses and bytes, by seed.
        paced: Utilisations, by rate in Mbit/s.
    """

    variant: Variant
    runs: list[dict[str, Any]]
    paced: dict[int, dict[str, Any]]

    @property
    def loss(self) -> float:
        """Median of the last losses."""
        return float(statistics.median(point["losses"][-1][1] for point in self.runs))

    @property
    def bytes(self) -> float:
        """Bytes of one site, both ways."""
        return float(self.runs[0]["down"] + self.runs[0]["up"])

    @property
    def fastest(self) -> dict[str, Any]:
        """The point of the fastest link."""
        return self.paced[max(self.paced)]


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


def tables(results: Sequence[Result], plan: Plan) -> str:
    """Return the tables of losses and bytes, and of rates, as Markdown."""
    plain = results[0]
    tokens = plan.steps * SITES * ROWS * LENGTH
    losses = []
    for result in results:
        last = [point["losses"][-1][1] for point in result.runs]
        spread = f" ({min(last):.3f} to {max(last):.3f})" if len(last) > 1 else ""
        losses.append(
            [
                result.variant.name,
                f"{result.loss:.3f}{spread}",
                f"{result.loss / plain.loss - 1:+.1%}",
                format_bytes(round(result.bytes)),
                f"{plain.bytes / result.bytes:.0f}",
                format_bytes(round(result.fastest["largest"])),
                result.variant.theirs[0],
            ]
        )
    rates = []
    for result in results:
        variant, point = result.variant, result.fastest
        needed = [rate_for(variant, point, share) for share in SHARES]
        rates.append(
            [
                variant.name,
                f"{point['step'] * 1000:.0f} ms",
                *(f"{result.paced[rate]['share']:.0%}" for rate in plan.rates),
                *(_three_digits(rate) for rate in needed),
                variant.theirs[1],
            ]
        )
    heads = [f"{rate} Mbit/s" for rate in plan.rates]
    return "\n".join(
        [
            f"Loss on held-out text after {tokens / 1e6:.1f}M tokens, nats a byte:\n",
            markdown_table(
                [
                    *("variant", "loss", "beside the first", "bytes of a site", "times fewer"),
                    *("largest exchange", "theirs, 35M"),
                ],
                losses,
            ),
            "Share of the time in which sites train, measured; and the rate for a share, computed, "
            "in Mbit/s (theirs, 1B, in Gbit/s):\n",
            markdown_table(
                ["variant", "step", *heads, *(f"{share:.0%}" for share in SHARES), "theirs, 80%"],
                rates,
            ),
        ]
    )


def _three_digits(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def draw(results: Sequence[Result], folder: Path) -> None:
    """Draw the loss by bytes, and the share of time in training by rate."""
    from matplotlib.figure import Figure

    from flstream.report.matplotlib_style import save, series_color, styled

    with styled():
        figure = Figure(figsize=(8, 4))
        axes = figure.subplots()
        for index, result in enumerate(results):
            point = result.runs[0]
            steps = point["losses"][-1][0]
            axes.plot(
                [result.bytes * step / steps / 2**20 for step, _ in point["losses"]],
                [loss for _, loss in point["losses"]],
                color=series_color(index),
                label=result.variant.name,
                marker=".",
            )
        axes.set_xscale("log")
        axes.set_xlabel("MiB that a site has sent and received")
        axes.set_title("Loss on held-out text, nats a byte")
        axes.legend()
        save(figure, folder / "diloco-loss.png")
        figure = Figure(figsize=(8, 4))
        axes = figure.subplots()
        rates = [10 ** (exponent / 20) for exponent in range(-20, 81)]
        for index, result in enumerate(results):
            color = series_color(index)
            shares = [computed_share(result.variant, result.fastest, rate) for rate in rates]
            axes.plot(rates, shares, color=color, label=result.variant.name)
            measured = [(rate, point["share"]) for rate, point in result.paced.items()]
            axes.plot(*zip(*measured, strict=True), "o", color=color)
        axes.set_xscale("log")
        axes.set_ylim(0, 1)
        axes.set_xlabel("Mbit/s of a site's link; lines are computed, dots measured")
        axes.set_title("Share of the time in which sites train")
        axes.legend()
        save(figure, folder / "diloco-rates.png")


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
