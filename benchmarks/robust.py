"""Measure rules of aggregation against attackers: jobs/byzantine, three of whose ten sites attack.

Every figure is the accuracy after ten rounds, the median of three seeds; a run that fails, because
its model is no longer finite, has the accuracy of its last round. Then a round of the rules at
1 GiB and four clients, beside one of the mean.

    python benchmarks/robust.py [--quick] [--only PART]... [--json FILE]

Takes half an hour, 8 GiB of memory and 10 GiB of disk in the current directory; with ``--quick``,
one seed, and sizes of an eighth.
"""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from rounds import GIB, kinds_of_rounds
from rows import Part, Row, measure_parts
from simulating import JOBS, command, simulate

SEEDS = (7, 8, 9)
ATTACKERS = ("site-1", "site-2", "site-3")
REACHED = 0.9


class Scenario(NamedTuple):
    """An attack.

    Attributes:
        what: Description.
        alpha: Parameter of the Dirichlet distribution of labels over sites.
        attack: What the attackers do; None for nothing.
        scale: How large they make it.
    """

    what: str
    alpha: float
    attack: str | None = None
    scale: float = 1


HONEST = Scenario("nobody attacks", 100)
FLIPPED = Scenario("flipped, x4", 100, "sign_flip", 4)
SCENARIOS = (
    HONEST,
    FLIPPED,
    Scenario("flipped, x4, alpha 0.5", 0.5, "sign_flip", 4),
    Scenario("flipped", 100, "sign_flip"),
    Scenario("flipped labels", 100, "label_flip"),
    Scenario("noise", 100, "noise"),
)

METHODS = {
    "mean": (),
    "norm_bounded_mean": ("aggregation.clip_norm=median",),
    "median": (),
    "trimmed_mean": ("aggregation.trim=0.3",),
    "krum": (),
    "multi_krum": (),
    "bulyan": (),
    "geometric_median": (),
}
"""Settings of each method, beside its name."""

# What is asked of a method where updates are flipped and four times as large: at least, at most.
_BOUNDS: dict[str, tuple[float | None, float | None]] = {
    "mean": (None, 0.99),
    "median": (1.0, None),
    "krum": (1.0, None),
    "geometric_median": (1.0, None),
}


def accuracy(folder: Path, scenario: Scenario, method: str, seed: int) -> float:
    """Run the job once, and return the accuracy of its last model that was evaluated."""
    settings = [f"seed={seed}", f"train.args.split_seed={seed}", f"aggregation.method={method}"]
    settings += [f"train.args.alpha={scenario.alpha}", "checkpoints.keep=1", *METHODS[method]]
    for site in ATTACKERS:
        settings += [f"clients.args.{site}.scale={scenario.scale}"]
        settings += [f"clients.args.{site}.attack={scenario.attack or 'none'}"]
    done = simulate(command(JOBS / "byzantine", folder / "run", settings))
    shutil.rmtree(folder / "run", ignore_errors=True)
    scores = [row["accuracy"] for row in done.summary.get("metrics", []) if "accuracy" in row]
    # An attack that leaves no finite number is what is measured.
    is_broken = done.status and "finite" not in (done.summary.get("error") or "")
    if is_broken or not scores:
        raise SystemExit(f"{method}, {scenario.what}, seed {seed}: {done.errors}")
    return float(scores[-1])


def attacks(folder: Path, scale: int, scenario: Scenario) -> Iterator[Row]:
    """Measure the accuracy that each method comes to under an attack."""
    seeds = SEEDS if scale == 1 else SEEDS[:1]
    for method in METHODS:
        found = statistics.median(accuracy(folder, scenario, method, seed) for seed in seeds)
        least, most = _BOUNDS.get(method, (None, None)) if scenario is FLIPPED else (None, None)
        what, ratio = f"{scenario.what}: {method}", found / REACHED
        yield Row(what, f"{found:.3f}", f"{REACHED:.1f}", ratio, least=least, most=most)


def seconds_a_round(folder: Path, scale: int) -> Iterator[Row]:
    """Measure a round of each method at 1 GiB and four clients, and the server's memory."""
    # Of four updates none may be Byzantine for bulyan: that is the mean again.
    kinds = {
        method: (f"aggregation.method={method}", *settings)
        for method, settings in METHODS.items()
        if method != "bulyan"
    }
    yield from kinds_of_rounds(folder, GIB // scale, kinds, {})


def _part(scenario: Scenario) -> Part:
    part = partial(attacks, scenario=scenario)
    part.__name__ = scenario.what.replace(", ", "_").replace(" ", "_")  # type: ignore[attr-defined]
    return part


PARTS: list[Part] = [*map(_part, SCENARIOS), seconds_a_round]


if __name__ == "__main__":
    measure_parts(PARTS, "Measure rules of aggregation against attackers.", 8)
