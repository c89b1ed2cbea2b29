"""Accuracy of personal models beside the global one's, at sites with very different data.

Handwritten digits at ten sites, shared by a Dirichlet distribution of 0.1, and each site scores a
model on a fifth of its own images. A figure is the mean over sites after the last round, weighted
by their images, and the median over seeds (with the least and the largest).

    python benchmarks/personal_models.py [--seeds 3] [--rounds 10]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from rows import print_columns
from simulating import run

SITES = ("clients.count=10", "train.args.alpha=0.1", "train.args.test=own")
ALONE = ("workflow.args.ditto_lambda=0",)


class Personal(NamedTuple):
    """Accuracy of one kind of model at the sites.

    Attributes:
        what: Kind of the model.
        values: Accuracy after the last round, for each seed.
    """

    what: str
    values: Sequence[float]

    @property
    def cells(self) -> tuple[str, ...]:
        """Formatted cells of the row."""
        return (
            self.what,
            f"{median(self.values):.3f}",
            f"{min(self.values):.3f} to {max(self.values):.3f}",
        )


def personal_rows(seeds: int = 3, rounds: int = 10) -> Iterator[Personal]:
    """Run the jobs for each seed, and yield a row for each kind of model.

    The global model of ditto is that of fedavg, bit for bit.

    Args:
        seeds: Number of seeds, from 1. A seed decides the split, too.
        rounds: Rounds of a run.
    """
    runs = [
        ("ditto", (), "accuracy", "the global model (fedavg)"),
        ("ditto", (), "personal_accuracy", "ditto: a model of the site's own, lambda 0.1"),
        ("ditto", ALONE, "personal_accuracy", "a model that the site has trained alone, lambda 0"),
        ("fedper", (), "accuracy", "fedper: the last layer is the site's own"),
    ]
    found: dict[tuple[str, tuple[str, ...]], list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory(prefix="flstream-personal-") as folder:
        for job, more, metric, what in runs:
            if (job, more) not in found:
                found[job, more] = [
                    last_metrics(job, Path(folder), rounds, seed, more)
                    for seed in range(1, seeds + 1)
                ]
            yield Personal(what, [each[metric] for each in found[job, more]])


def last_metrics(
    job: str, folder: Path, rounds: int, seed: int, more: Sequence[str]
) -> dict[str, float]:
    """Run a job, and return the metrics of its last round."""
    seeded = (f"rounds={rounds}", f"seed={seed}", f"train.args.split_seed={seed}")
    done = run(job, folder, *SITES, *seeded, *more)
    metrics: dict[str, float] = done.summary["metrics"][-1]
    return metrics


def main(options: argparse.Namespace) -> int:
    """Print the table, and return the exit status."""
    rows = list(personal_rows(options.seeds, options.rounds))
    print_columns([("model", "accuracy", "of the seeds"), *(row.cells for row in rows)])
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(description="Personal models beside the global one.")
    made.add_argument("--seeds", type=int, default=3, help="number of seeds")
    made.add_argument("--rounds", type=int, default=10, help="rounds of a run")
    return made


if __name__ == "__main__":
    sys.exit(main(parser().parse_args()))
