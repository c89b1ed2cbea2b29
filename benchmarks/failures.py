"""Measure the goodput of DiLoCo with learners that fail, on the virtual clock.

    python benchmarks/failures.py [--seconds N] [--seeds N] [--set KEY=VALUE]... [--json FILE]

Eight learners are up for 20 s and then repaired for 2 s, both exponential means. A training, the
inner steps of an outer step, takes a learner of speed 1 a second. A failure loses the training
under way, half of it on average; the learner begins anew from the newest model once it is repaired.

Goodput is the simulated time of trainings whose updates are in a model, over the time of all
learners from the beginning to the end. Repairs, lost trainings and waits are the rest. It is added
up from the journals: the times of trainings, the updates of folds. Links, folds and evaluations
take no time, and how well the model learns is not measured.

- synchronous: decoupled_diloco with a quorum of all. An outer step needs all eight learners, as a
  collective operation does. Seven keep what they have trained, and wait until the one that failed
  is repaired and has trained anew.
- decoupled: a quorum of some; the others are in a later outer step.
- left out: diloco with clients.min_updates = 1, whose outer step leaves out who failed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
from rows import print_table
from running import run

from flstream.runs.journal import read_journal

JOB = Path(__file__).parent / "failures_job"
LEARNERS = 8
NANOSECONDS = 1e9


class Variant(NamedTuple):
    """A way to train.

    Attributes:
        name: Name in the table.
        workflow: Value of the key ``workflow``.
        steps: Outer steps that it makes in a second, roughly.
    """

    name: str
    workflow: str
    steps: float


VARIANTS = [
    Variant("synchronous", "{type=decoupled_diloco, args{quorum=8}}", 0.5),
    Variant("decoupled, quorum 4", "{type=decoupled_diloco, args{quorum=4}}", 1.7),
    Variant(
        "decoupled, quorum 4, grace 0.25",
        "{type=decoupled_diloco, args{quorum=4, grace=0.25 s}}",
        1.0,
    ),
    Variant("decoupled, quorum 6", "{type=decoupled_diloco, args{quorum=6}}", 1.0),
    Variant("left out", "{type=diloco}", 1.0),
]


class Figures(NamedTuple):
    """Figures of a run.

    Attributes:
        goodput: Share of the learners' time that is in a model.
        lost: Mean seconds of a training that a failure has lost.
        failures: Trainings that failed.
        steps: Outer steps in a second.
        stale: Share of the updates that were trained from an older model than their step's.
    """

    goodput: float
    lost: float
    failures: float
    steps: float
    stale: float


def add_up(path: Path, learners: int = LEARNERS) -> Figures:
    """Add up the journal of a run."""
    trained: dict[tuple[int, str], float] = {}
    base: dict[int, int] = {}
    lost: list[float] = []
    useful = ended = 0.0
    folds = updates = stale = 0
    for record in read_journal(path / "events.jsonl").effects:
        result = msgspec.json.decode(record.result)
        result = result if isinstance(result, dict) else {}
        ended = max(ended, result.get("until", 0))
        if (train := result.get("train")) is not None:
            number = result.get("start", record.effect)
            base[number] = train.get("base", 0)
            ended = max(ended, train["ended"])
            for site, time in train["times"].items():
                if site in train.get("failures", {}):
                    lost.append(time)
                else:
                    trained[number, site] = time
        if record.name == "fold" and record.model is not None:
            folds += 1
            for number, sites in result["updates"]:
                useful += sum(trained.pop((number, site)) for site in sites)
                updates += len(sites)
                stale += len(sites) * (base[number] < record.model.version - 1)
    seconds = ended / NANOSECONDS
    return Figures(
        useful / NANOSECONDS / learners / seconds,
        statistics.mean(lost or [0.0]) / NANOSECONDS,
        len(lost),
        folds / seconds,
        stale / updates,
    )


def measure(settings: Sequence[str]) -> Figures:
    """Run the job with some settings."""
    measured: list[Figures] = []
    with tempfile.TemporaryDirectory() as folder:
        run(JOB, Path(folder), *settings, check=lambda path: measured.append(add_up(path)))
    return measured[0]


def main() -> None:
    """Run each variant with several seeds, and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=int, default=300, help="of simulated time, roughly")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], help="override of the job file")
    parser.add_argument("--json", type=Path, help="file for the figures of each seed")
    args = parser.parse_args()
    measured: dict[str, list[Figures]] = {}
    for variant in VARIANTS:
        runs: list[Figures] = measured.setdefault(variant.name, [])
        for seed in range(1, args.seeds + 1):
            settings = [f"seed={seed}", f"workflow={variant.workflow}"]
            settings += [f"rounds={round(args.seconds * variant.steps)}", *args.set]
            runs.append(measure(settings))
            print(f"{variant.name}, seed {seed}: {runs[-1].goodput:.1%}", file=sys.stderr)
    rows = []
    for name, runs in measured.items():
        middle = Figures(*(statistics.median(column) for column in zip(*runs, strict=True)))
        low, high = min(runs).goodput, max(runs).goodput
        rows.append(
            (
                name,
                f"{middle.goodput:.1%} ({low:.1%} to {high:.1%})",
                f"{middle.steps:.2f}",
                f"{middle.stale:.0%}",
                f"{middle.failures:.0f}",
                f"{middle.lost:.2f}",
            )
        )
    heads = (
        "DiLoCo",
        "goodput",
        "outer steps a second",
        "stale",
        "failures",
        "seconds lost by each",
    )
    print_table(heads, rows)
    if args.json is not None:
        plain = {name: [row._asdict() for row in runs] for name, runs in measured.items()}
        args.json.write_text(json.dumps(plain, indent=1))


if __name__ == "__main__":
    main()
