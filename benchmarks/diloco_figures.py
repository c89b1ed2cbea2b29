"""Variants of benchmarks/diloco.py, and the tables and charts of what is measured of them."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rows import markdown_table

from flstream.units import format_bytes

SITES, ROWS, LENGTH = 4, 2, 128
RATES = (10, 100, 1000)
"""Rates of the paced links, in Mbit/s each way."""
PRETRAINED_LR = 0.004
"""Learning rate of AdamW for the model with which all variants begin."""
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
        theirs: Loss at 35M parameters, and Gbit/s for 80% compute utilisation at 1B, in the tables
            of Streaming DiLoCo (arXiv:2501.18512); None for what they lack.
    """

    name: str
    inner_steps: int
    fragments: int = 1
    overlap: int = 0
    settings: tuple[str, ...] = ()
    seeds: int = 3
    theirs: tuple[float, float] | None = None

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


OUTER = ("workflow.args.learning_rate=0.5",)
"""Outer learning rate, tuned by DiLoCo's loss with seed 7: 0.7 and 0.9 are worse."""
VARIANTS = (
    Variant("data-parallel", 1, theirs=(3.51, 152.6)),
    Variant("DiLoCo, H = 30", 30, settings=OUTER, theirs=(3.54, 6.2)),
    Variant("DiLoCo, H = 100", 100, settings=OUTER, seeds=1),
    Variant(
        "streaming, P = 3, overlap, 4 bits",
        30,
        fragments=3,
        overlap=5,
        settings=(
            *OUTER,
            "workflow.args.alpha=0",
            "streaming.codecs={up=[int4], down=[int8], down_of=changes}",
        ),
        theirs=(3.53, 0.9),
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
        pretrained: Steps of as many tokens that have made the model with which it begins.
        scores: How often its model is scored.
        seeds: The most seeds of a variant.
        single_steps: Steps of a data-parallel run over a paced link.
        exchanges: Exchanges of the other runs there.
        rates: Rates of the links in Mbit/s.
    """

    steps: int = 2400
    pretrained: int = 300
    scores: int = 10
    seeds: int = 3
    single_steps: int = 20
    exchanges: int = 3
    rates: tuple[int, ...] = RATES


QUICK = Plan(
    steps=600, pretrained=150, scores=3, seeds=1, single_steps=10, exchanges=2, rates=(10, 100)
)


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


def with_one_step(results: Sequence[Result]) -> list[Result]:
    """Return results whose rates are computed with one time of a step, the median of all runs.

    The time depends on what else the machine does, and not on the variant.
    """
    step = statistics.median(p["step"] for result in results for p in result.paced.values())
    return [
        result._replace(paced={r: {**p, "step": step} for r, p in result.paced.items()})
        for result in results
    ]


def tables(results: Sequence[Result], plan: Plan) -> str:
    """Return the tables of losses and bytes, and of rates if they were measured, as Markdown."""
    tokens = (plan.pretrained + plan.steps) * SITES * ROWS * LENGTH
    parts = [
        f"Loss on held-out text after {tokens / 1e6:.1f}M tokens, nats a byte:\n",
        markdown_table(
            [
                *("variant", "loss", "beside the first", "bytes of a site", "times fewer"),
                *("largest exchange", "theirs, 35M", ""),
            ],
            [_of_losses(result, results[0]) for result in results],
        ),
    ]
    if results[0].paced:
        alike = with_one_step(results)
        heads = [f"{rate} Mbit/s" for rate in plan.rates]
        parts += [
            "Share of the time in which sites train, measured; the rate for a share in Mbit/s, "
            f"computed for steps of {alike[0].fastest['step'] * 1000:.0f} ms, and how many times "
            "lower it is at 80% (theirs, 1B, in Gbit/s):\n",
            markdown_table(
                [
                    *("variant", *heads, *(f"{share:.0%}" for share in SHARES)),
                    *("times lower", "theirs, 80%", "times lower"),
                ],
                [_of_rates(result, alike[0], plan) for result in alike],
            ),
        ]
    return "\n".join(parts)


def _of_losses(result: Result, plain: Result) -> list[str]:
    """Return a variant's row of the first table; the second result is data-parallel's."""
    last = [point["losses"][-1][1] for point in result.runs]
    spread = f" ({min(last):.3f} to {max(last):.3f})" if len(last) > 1 else ""
    theirs, most = result.variant.theirs, plain.variant.theirs
    return [
        result.variant.name,
        f"{result.loss:.3f}{spread}",
        f"{result.loss / plain.loss - 1:+.1%}",
        format_bytes(round(result.bytes)),
        f"{plain.bytes / result.bytes:.0f}",
        format_bytes(round(result.runs[0]["largest"])),
        *([f"{theirs[0]}", f"{theirs[0] / most[0] - 1:+.1%}"] if theirs and most else ["", ""]),
    ]


def _of_rates(result: Result, plain: Result, plan: Plan) -> list[str]:
    """Return a variant's row of the second table; the second result is data-parallel's."""
    needed = [rate_for(result.variant, result.fastest, share) for share in SHARES]
    theirs, most = result.variant.theirs, plain.variant.theirs
    return [
        result.variant.name,
        *(f"{result.paced[rate]['share']:.0%}" for rate in plan.rates),
        *(_three_digits(rate) for rate in needed),
        f"{rate_for(plain.variant, plain.fastest, 0.8) / needed[SHARES.index(0.8)]:.0f}",
        *([f"{theirs[1]}", f"{most[1] / theirs[1]:.0f}"] if theirs and most else ["", ""]),
    ]


def _three_digits(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def draw(results: Sequence[Result], folder: Path) -> None:
    """Draw the loss by bytes, and the share of time in training by rate."""
    sys.path.append(str(Path(__file__).parent / "peers"))
    from matplotlib.figure import Figure
    from plot_style import save, series_color, styled

    folder.mkdir(parents=True, exist_ok=True)
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
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_xlabel("MiB that a site has sent and received")
        axes.set_title("Loss on held-out text, nats a byte")
        axes.set_ylim(top=axes.get_ylim()[1] * 1.1)  # room for the legend
        axes.legend()
        save(figure, folder / "diloco-loss.png")
        if not results[0].paced:
            return
        results = with_one_step(results)
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
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_ylim(0, 1)
        axes.set_xlabel("Mbit/s of a site's link; lines are computed, dots measured")
        axes.set_title("Share of the time in which sites train")
        axes.legend()
        save(figure, folder / "diloco-rates.png")
