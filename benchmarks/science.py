"""Measure what workflows, rules and privacy are worth: accuracy, distance, rounds, time and bytes.

Makes one table of it, with what the papers lead one to expect where that is asked for:

    python benchmarks/science.py [--scale N] [--only PART]... [--json FILE] [--markdown FILE]

Takes about an hour and 8 GiB of memory; with ``--scale``, one seed and fewer attacks.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

from rows import GIB, Row, by_name, measure_parts
from running import JOBS, compare, rows_of_rounds, run

from flstream.job.aggregation_section import METHODS
from flstream.runs.summary import Summary
from flstream.units import format_bytes

SCIENCE = Path(__file__).parent / "science_job"
TEN_SITES = ("clients.count=10", "train.args.alpha=0.1", "checkpoints.keep=1")
REACHED, MOST_ROUNDS = 0.95, 60
PLAIN_SGD = (
    *TEN_SITES,
    "train.args.lr=0.1",
    "train.args.momentum=0",  # as SCAFFOLD asks for
    f"rounds={MOST_ROUNDS}",
    f"stop_when=accuracy >= {REACHED}",
)

WORKFLOWS = {
    "fedavg": (),
    "fedavg, FedProx mu 0.1": ("workflow.args.fedprox_mu=0.1",),
    "cyclic": ("workflow.type=cyclic",),
    "swarm": ("workflow.type=swarm",),
    "scaffold": ("workflow.type=scaffold",),
    "feddyn, alpha 0.1": ("workflow.type=feddyn", "workflow.args.feddyn_alpha=0.1"),
}
"""Settings of each workflow that ends in one model for all sites."""

RULES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(["mean", "norm_bounded_mean", *METHODS], ()),
    "norm_bounded_mean": ("aggregation.clip_norm=median",),
    "trimmed_mean": ("aggregation.args.trim=0.3",),
}
"""Settings of each `aggregation.method`, beside its name."""

# The same learning rate at the sites, and 20 of them training at a time.
UNEQUAL_FLEET = (
    *("train.args.lr=2", "checkpoints.keep=1", f"stop_when=accuracy >= {REACHED}"),
    *("server_optimizer.type=fedavgm", "server_optimizer.args.beta_1=0"),
)
MOST_UPDATES, SCORED_AFTER = 4000, 20
_SERVER_RATE = "server_optimizer.args.learning_rate"
_FIRST_TEN = "clients.per_round=10", "stragglers={policy=over_selection, extra=10}"
CLOCKED: dict[str, tuple[int, tuple[str, ...]]] = {
    "fedavg": (20, (f"{_SERVER_RATE}=2",)),
    "fedavg, server rate 1": (20, ()),
    "fedavg, the first 10 of 20": (10, (f"{_SERVER_RATE}=2", *_FIRST_TEN)),
    "fedbuff, buffers of 2": (2, ("workflow.type=fedbuff", "workflow.args.buffer_size=2")),
    "fedasync, alpha 0.9": (1, ("workflow.type=fedasync", "workflow.args.alpha=0.9")),
}
"""Updates of a round and settings, by the name of each workflow that is timed."""

ATTACKS = {
    "flipped, x4": ("sign_flip", 4, 100.0),
    "nobody attacks": ("none", 1, 100.0),
    "flipped, x4, alpha 0.5": ("sign_flip", 4, 0.5),
    "flipped": ("sign_flip", 1, 100.0),
    "flipped labels": ("label_flip", 1, 100.0),
    "noise": ("noise", 1, 100.0),
}
"""What three of ten sites do, how large they make it, and alpha of the labels' distribution."""

# What is asked of a rule under the first attack: ratios of its accuracy to 0.9, at least, at most.
_BOUNDS: dict[str, tuple[float | None, float | None]] = {
    "mean": (None, 0.99),
    "median": (1.0, None),
    "krum": (1.0, None),
    "geometric_median": (1.0, None),
}


def summaries(
    folder: Path, job: Path, scale: int, *settings: str, first_seed: int = 7, may_fail: str = ""
) -> list[Summary]:
    """Run a job with each of three seeds, or one, and return the summaries."""
    seeds = range(first_seed, first_seed + (3 if scale == 1 else 1))
    cases = [(f"seed={seed}", f"train.args.split_seed={seed}", *settings) for seed in seeds]
    return [run(job, folder, *case, may_fail=may_fail).summary for case in cases]


def least_squares(folder: Path, scale: int) -> Iterator[Row]:
    """Measure the distance to the optimum of all sites, where each site's own differs."""
    rounds = max(100 // scale, 2)
    settings = (f"rounds={rounds}", f"workflow.args.evaluate_every={rounds}")
    distances = {}
    for name in ("fedavg", "scaffold", "feddyn, alpha 0.1"):
        done = run(SCIENCE / "least_squares.conf", folder, *settings, *WORKFLOWS[name])
        distances[name] = done.summary.metrics[-1]["distance"]
    for name, distance in distances.items():
        what = f"least squares, {rounds} rounds of 50 steps: {name}"
        most = 0.1 if name == "scaffold" else None
        yield Row(what, distance, "", distances["fedavg"], "fedavg", most=most)
    what = f"least squares, {rounds} rounds of 50 steps: scaffold"
    yield Row(what, distances["scaffold"], "", 1e-3, most=1)


def rounds_to(folder: Path, scale: int) -> Iterator[Row]:
    """Measure the rounds that workflows need where each site sees few of the digits.

    The median of three seeds stands before the rounds of each. Ten sites share the digits by a
    Dirichlet distribution of 0.1, and train by plain SGD.
    """
    plain = 0.0
    for name, settings in WORKFLOWS.items():
        counts = [
            summary.rounds_completed
            if max(row["accuracy"] for row in summary.metrics) >= REACHED
            else MOST_ROUNDS + 1
            for summary in summaries(folder, JOBS / "digits", scale, *PLAIN_SGD, *settings)
        ]
        median = statistics.median(counts)
        plain = plain or median
        spelled = (str(n) if n <= MOST_ROUNDS else f"over {MOST_ROUNDS}" for n in counts)
        what = f"digits, alpha 0.1, rounds to {REACHED}: {name}"
        yield Row(what, median, "rounds", plain, "fedavg", spread=f"({', '.join(spelled)})")


def clock(folder: Path, scale: int) -> Iterator[Row]:
    """Measure the simulated time that workflows need on a fleet of unequal phones.

    `jobs/stragglers` with a learning rate of 2 and 20 sites that train at a time, on the virtual
    clock: when a model first had 0.95 on unseen digits. Models were scored every 20 updates of all
    workflows alike. The median of three seeds stands before the figures of each. Updates and bytes
    are those that counted; of over-selection, as many again came too late.

    Settings are the best of those tried with twelve other seeds, in a NumPy copy of this job:
    server rates 1, 1.5, 2 and 3 of fedavg, 1, 1.5 and 2 of fedbuff; 10 or 15 of 20 taken; buffers
    of 2, 4, 5 and 10; alpha 0.3, 0.6 and 0.9; rates at the sites 1, 2 and 4. With those seeds
    fedavg took 75 s, and fedbuff 30 s; at a rate of 4, which suits fedavg best, 67 s and 39 s.
    Weights of staleness are the defaults. fedavg at server rate 1 is the plain one.
    """
    waited = 0.0
    for name, (updates, settings) in CLOCKED.items():
        every = f"workflow.args.evaluate_every={SCORED_AFTER // updates}"
        case = (f"rounds={MOST_UPDATES // updates}", every, *settings)
        ended = summaries(folder, JOBS / "stragglers", scale, *UNEQUAL_FLEET, *case)
        rows = list(clock_rows(name, updates, ended, waited))
        waited = waited or rows[0].value
        yield from rows


def clock_rows(
    name: str, updates: int, ended: Sequence[Summary], waited: float = 0.0
) -> Iterator[Row]:
    """Yield medians of the simulated seconds, updates and bytes until a workflow had the accuracy.

    Args:
        name: Name of the workflow.
        updates: Updates that each of its rounds is made of.
        ended: Summaries of its runs. A run that ended later than ``stop_when`` has taken forever.
        waited: Simulated seconds of fedavg; 0 for fedavg itself.
    """
    seconds = [
        float(summary.simulated_seconds or 0) if summary.ended_early else math.inf
        for summary in ended
    ]
    median = statistics.median(seconds)
    spread = f"({', '.join(f'{each:.0f}' for each in seconds)})"
    most = 0.5 if name.startswith("fedbuff") else None
    what = f"simulated time to {REACHED}: {name}"
    yield Row(what, median, "s", waited or median, "fedavg", most=most, spread=spread)
    folded = [summary.rounds_completed * updates for summary in ended]
    median = statistics.median(folded)
    spread = f"({', '.join(map(str, folded))})"
    yield Row(f"updates: {name}", median, "updates", median, spread=spread)
    size = statistics.median(summary.transfer.up.bytes for summary in ended)
    yield Row(f"bytes up: {name}", size, "bytes", size)


def robustness(folder: Path, scale: int) -> Iterator[Row]:
    """Measure the accuracy of each rule after ten rounds, where three of ten sites attack.

    Figures are medians of three seeds. Labels are spread evenly over sites, or with alpha 0.5
    unevenly. A model that is not finite has the accuracy of its last finite round.
    """
    first = next(iter(ATTACKS))
    attacks = ATTACKS if scale == 1 else {first: ATTACKS[first]}
    for attack, (kind, factor, alpha) in attacks.items():
        same = [f"train.args.alpha={alpha}", "checkpoints.keep=1"]
        for site in ("site-1", "site-2", "site-3"):
            same += [f"clients.args.{site}.attack={kind}", f"clients.args.{site}.scale={factor}"]
        for rule, settings in RULES.items():
            case = (*same, f"aggregation.method={rule}", *settings)
            ended = summaries(folder, JOBS / "byzantine", scale, *case, may_fail="finite")
            scores = [
                [row["accuracy"] for row in summary.metrics if "accuracy" in row][-1]
                for summary in ended
            ]
            least, most = _BOUNDS.get(rule, (None, None)) if attack == first else (None, None)
            median = statistics.median(scores)
            yield Row(f"{attack}: {rule}", median, "", 0.9, least=least, most=most)


def personal(folder: Path, scale: int) -> Iterator[Row]:
    """Measure the accuracy at the sites, of the global model and of models of their own.

    Ten sites share handwritten digits by a Dirichlet distribution of 0.1, and each scores a model
    on a fifth of its own images. Medians of three seeds stand before their range. The global model
    of ditto is that of fedavg, bit for bit.
    """
    ditto = "workflow.type=ditto", "workflow.args.ditto_lambda=0.1"
    fedper = "workflow.type=fedper", 'workflow.args.personal=["^layers.7"]'
    own_tests = (*TEN_SITES, "train.args.test=own", "rounds=10")
    plain = 0.0
    for settings, models in (
        (ditto, {"accuracy": "fedavg", "personal_accuracy": "ditto, lambda 0.1"}),
        ((*ditto, "workflow.args.ditto_lambda=0"), {"personal_accuracy": "alone, lambda 0"}),
        (fedper, {"accuracy": "fedper: the last layer is the site's own"}),
    ):
        ended = summaries(folder, JOBS / "digits", scale, *own_tests, *settings, first_seed=1)
        for metric, what in models.items():
            values = [float(summary.metrics[-1][metric]) for summary in ended]
            median = statistics.median(values)
            plain = plain or median
            spread = f"({min(values):.3f} to {max(values):.3f})"
            yield Row(f"at the sites: {what}", median, "", plain, "global", spread=spread)


def costs(folder: Path, scale: int) -> Iterator[Row]:
    """Measure a round and the server's memory with a model of 1 GiB and four sites."""
    # Of four updates none may be Byzantine for bulyan: that is the mean again.
    cases: dict[str, tuple[str, ...]] = {
        rule: (f"aggregation.method={rule}", *settings)
        for rule, settings in RULES.items()
        if rule != "bulyan"
    }
    cases |= {name: WORKFLOWS[name] for name in ("swarm", "scaffold")}
    cases["private"] = "privacy.type=central", "privacy.clipping.norm=1", "clients.per_round=4"
    size = GIB // scale
    figures = compare(cases, folder, size, 4, repeat=3 if scale == 1 else 1)
    yield from rows_of_rounds(figures, f"{format_bytes(size)} x 4, ")


PARTS = by_name(least_squares, rounds_to, clock, robustness, personal, costs)


if __name__ == "__main__":
    measure_parts(PARTS, "Figures of workflows, robust rules and privacy.")
