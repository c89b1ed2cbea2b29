"""Measure what workflows, rules and privacy are worth: accuracy, distance, rounds and bytes.

Makes one table of it, with what the papers lead one to expect where that is asked for:

    python benchmarks/science.py [--quick] [--only PART]... [--json FILE] [--markdown FILE]

Takes about an hour and 8 GiB of memory; with ``--quick``, one seed and sizes of an eighth.
"""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from robust import FLIPPED, SCENARIOS, attacks
from rounds import GIB, MIB, kinds_of_rounds
from rows import Part, Row, measure_parts
from simulating import JOBS, command, simulate

SCIENCE = Path(__file__).parent / "science_job"
OWN_TESTS = ("clients.count=10", "train.args.alpha=0.1", "train.args.test=own")
SEEDS = (7, 8, 9)
REACHED = 0.95
# Rounds of science_job/digits.conf.
_MOST_ROUNDS = 60
# Seconds that sixty rounds of sites one after another may take on a busy machine.
_LONGEST = 1200.0

WORKFLOWS = {
    "fedavg": (),
    "fedavg, FedProx mu 0.1": ("workflow.args.fedprox_mu=0.1",),
    "cyclic": ("workflow.type=cyclic",),
    "swarm": ("workflow.type=swarm",),
    "scaffold": ("workflow.type=scaffold",),
    "feddyn, alpha 0.1": ("workflow.type=feddyn", "workflow.args.feddyn_alpha=0.1"),
}
"""Settings of each workflow that ends in one model for all sites."""


def finished(folder: Path, job: Path, *settings: str) -> dict[str, Any]:
    """Run a job to its end, and return its summary.

    Raises:
        SystemExit: it failed.
    """
    done = simulate(command(job, folder / "run", settings), timeout=_LONGEST)
    shutil.rmtree(folder / "run", ignore_errors=True)
    if done.status:
        raise SystemExit(f"{job.name} with {', '.join(settings)}: {done.errors}")
    return done.summary


def least_squares(folder: Path, scale: int) -> Iterator[Row]:
    """Measure how far from the optimum of all sites workflows end where sites' own differ."""
    rounds = 100 // scale
    distances = {}
    for name in ("fedavg", "scaffold", "feddyn, alpha 0.1"):
        settings = (f"rounds={rounds}", f"workflow.args.evaluate_every={rounds}")
        summary = finished(folder, SCIENCE / "least_squares.conf", *settings, *WORKFLOWS[name])
        distances[name] = float(summary["metrics"][-1]["distance"])
    plain = distances["fedavg"]
    for name, distance in distances.items():
        what = f"least squares, {rounds} rounds of 50 steps: {name}"
        most = 0.1 if name == "scaffold" else None
        yield Row(what, f"{distance:.2g}", f"{plain:.2g} fedavg", distance / plain, most=most)
    found = distances["scaffold"]
    yield Row("least squares: scaffold's distance", f"{found:.2g}", "0.001", found / 1e-3, most=1)


def rounds_to(folder: Path, scale: int) -> Iterator[Row]:
    """Measure the rounds that workflows need on digits of which each site sees few."""
    seeds = SEEDS if scale == 1 else SEEDS[:1]
    medians: dict[str, float] = {}
    for name, settings in WORKFLOWS.items():
        counts = []
        for seed in seeds:
            seeded = (f"seed={seed}", f"train.args.split_seed={seed}")
            summary = finished(folder, SCIENCE / "digits.conf", *seeded, *settings)
            best = max(row["accuracy"] for row in summary["metrics"])
            counts.append(summary["rounds_completed"] if best >= REACHED else _MOST_ROUNDS + 1)
        medians[name] = statistics.median(counts)
        spelt = ", ".join(
            str(count) if count <= _MOST_ROUNDS else f"over {_MOST_ROUNDS}" for count in counts
        )
        what = f"digits, alpha 0.1, rounds to {REACHED}: {name}"
        plain = medians["fedavg"]
        yield Row(what, f"{medians[name]:g} ({spelt})", f"{plain:g} fedavg", medians[name] / plain)


def robustness(folder: Path, scale: int) -> Iterator[Row]:
    """Measure the accuracy of each rule where three of ten sites attack."""
    for scenario in SCENARIOS if scale == 1 else (FLIPPED,):
        yield from attacks(folder, scale, scenario)


def personal(folder: Path, scale: int) -> Iterator[Row]:
    """Measure the accuracy of models of the sites' own beside the global one's, at the sites.

    Ten sites share handwritten digits by a Dirichlet distribution of 0.1, and each scores a model
    on a fifth of its own images. The global model of ditto is that of fedavg, bit for bit.
    """
    ditto = "workflow.type=ditto", "workflow.args.ditto_lambda=0.1"
    fedper = "workflow.type=fedper", 'workflow.args.personal=["^layers.7"]'
    plain = 0.0
    for settings, models in (
        (ditto, {"accuracy": "fedavg", "personal_accuracy": "ditto, lambda 0.1"}),
        ((*ditto, "workflow.args.ditto_lambda=0"), {"personal_accuracy": "alone, lambda 0"}),
        (fedper, {"accuracy": "fedper: the last layer is the site's own"}),
    ):
        scores = []
        for seed in range(1, 4 if scale == 1 else 2):
            seeded = ("rounds=10", f"seed={seed}", f"train.args.split_seed={seed}")
            summary = finished(folder, JOBS / "digits", *OWN_TESTS, *seeded, *settings)
            scores.append(summary["metrics"][-1])
        for metric, what in models.items():
            values = [float(row[metric]) for row in scores]
            median = statistics.median(values)
            plain = plain or median
            figure = f"{median:.3f} ({min(values):.3f} to {max(values):.3f})"
            yield Row(f"at the sites: {what}", figure, f"{plain:.3f} global", median / plain)


def costs(folder: Path, scale: int) -> Iterator[Row]:
    """Measure a round at 1 GiB and four clients, and the server's memory over its idle."""
    kinds = {
        "mean": (),
        "median": ("aggregation.method=median",),
        "krum": ("aggregation.method=krum",),
        "geometric_median": ("aggregation.method=geometric_median",),
        "swarm": ("workflow.type=swarm",),
        "scaffold": ("workflow.type=scaffold",),
        "private": ("privacy.type=central", "privacy.clipping.norm=1", "clients.per_round=4"),
    }
    yield from kinds_of_rounds(folder, GIB // scale, kinds, {"swarm": 32 * MIB})


PARTS: list[Part] = [least_squares, rounds_to, robustness, personal, costs]


if __name__ == "__main__":
    measure_parts(PARTS, "What workflows, rules and privacy are worth.", 8)
