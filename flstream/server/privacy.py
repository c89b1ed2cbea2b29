"""The privacy of a run: the mechanism of each fold, and the epsilon spent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from flstream.aggregation.accountant import NOT_DRAWN, Accounting, epsilon
from flstream.aggregation.clipping import AdaptiveNorm
from flstream.aggregation.private import NoiseSource
from flstream.aggregation.rules import AggregationRule, GaussianMechanism
from flstream.errors import SimulationError
from flstream.job import Job
from flstream.job.conditions import read_condition
from flstream.job.sections import EPSILON
from flstream.model.dtypes import FLOATS
from flstream.model.layout import Layout
from flstream.runs.results import FoldPrivacy
from flstream.runs.stopping import EarlyStopping
from flstream.server.sampling import draw_sites, sample_sites
from flstream.server.training import UpdatesToFold
from flstream.text import brief_names

if TYPE_CHECKING:
    from flstream.server.cohort_fold import CohortFold


class PrivateFolds:
    """Makes folds private; its state follows from the records of folds, so replay rebuilds it."""

    def __init__(self, job: Job, stopping: EarlyStopping) -> None:
        privacy, clients = job.privacy, job.clients
        self._job = job
        self._cohort = clients.cohort_size
        self._is_poisson = privacy.sampling == "poisson"
        self._accounting = accounting = Accounting.of(job)
        self._population = accounting.population
        # The noise on the mean is that of the cohort which is simulated.
        self._noise = privacy.update_noise_multiplier(clients) / accounting.cohort
        self._adaptive: AdaptiveNorm | None = None
        if privacy.clipping.type == "adaptive":
            scale = self._cohort / accounting.cohort
            self._adaptive = AdaptiveNorm(
                privacy.clipping.target_quantile,
                privacy.clipping.learning_rate,
                self._cohort,
                privacy.count_stddev(clients) * scale,
            )
        self._clip_norm = privacy.clipping.norm
        self._folds: Mapping[int, int] = {}
        # The last draw: its round, who was drawn, and from how many.
        self._draw: tuple[int, list[str], int] | None = None
        # The round of the last fold, and from how many sites its cohort was drawn.
        self._last: tuple[int, int] = (0, NOT_DRAWN)
        self._newest: FoldPrivacy | None = None
        self._stopping = stopping
        self._has_warned = False

    def check_first_round(self) -> None:
        """Refuse a job whose first round would spend more than it may."""
        # In any case now, while workers start: the first one takes a second, for an import.
        first = epsilon(self._accounting, {self._population: 1})
        condition = read_condition(self._job.stop_when) if self._job.stop_when else None
        if condition is not None and condition.metric == EPSILON and condition.holds(first):
            raise SimulationError(
                f"one round alone would spend an epsilon of {first:.4g}, and stop_when is "
                f"{condition}; raise privacy.noise_multiplier"
            )

    def warnings(self, rule: AggregationRule, layout: Layout) -> list[str]:
        """Say, once, which tensors keep their values as they are no floats."""
        if self._has_warned:
            return []
        self._has_warned = True
        unchanged = _kept_tensors(rule, layout)
        if not unchanged:
            return []
        return [
            f"{brief_names(unchanged)} keep the values of the initial model, since privacy.type is "
            "central, and only floats get noise; aggregation.exclude says so of them without this "
            "warning"
        ]

    def sample(self, sites: Sequence[str], number: int) -> list[str]:
        """Draw the sites of a round, and remember them: a fold of just these costs less."""
        clients, seed = self._job.clients, self._job.seed
        missing = clients.count - len(sites)
        if self._is_poisson:
            # Each with the probability that it had from the first: others that are gone do not
            # change it.
            share = self._cohort / clients.count
            drawn, drawn_from = draw_sites(sites, share, seed, number), self._population
        else:
            drawn = sample_sites(sites, self._cohort, seed, number)
            drawn_from = self._population - missing
        self._draw = number, drawn, drawn_from
        return drawn

    def is_draw(self, sites: Sequence[str], number: int) -> bool:
        """Whether these sites are those that were drawn for a round; they may be none."""
        return self._draw is not None and self._draw[:2] == (number, list(sites))

    def rule(self, rule: AggregationRule, number: int, step: int) -> AggregationRule:
        """Return the rule of the next fold."""
        name = self._name(number, step)
        noise = self._noise * self._clip_norm
        return rule.private(GaussianMechanism(self._clip_norm, self._cohort, noise, name))

    def record(self, fold: CohortFold, number: int, step: int) -> FoldPrivacy:
        """Return the record of a fold that is done."""
        to_fold, received, clipped = fold.to_fold, len(fold.folded), len(fold.clipped)
        drawn_from, folds = self._drawn_from(to_fold, number), dict(self._folds)
        last_round, last_drawn_from = self._last
        if last_round == number and last_drawn_from != NOT_DRAWN:
            # Two folds of a round know of one draw: so it hides nobody in either of them.
            folds[last_drawn_from] -= 1
            folds[NOT_DRAWN] = folds.get(NOT_DRAWN, 0) + 1
        folds[drawn_from] = folds.get(drawn_from, 0) + 1
        then = drawn_from or self._population
        after = {**folds, then: folds.get(then, 0) + 1}
        norm = self._clip_norm
        if self._adaptive is not None:
            noise = np.empty(1)
            NoiseSource(f"{self._name(number, step)}//count").fill(0, noise)
            norm = self._adaptive.after(norm, received, clipped, float(noise[0]))
        return FoldPrivacy(
            clip_norm=self._clip_norm,
            clipped=clipped / received if received else 0.0,
            drawn_from=drawn_from,
            folds=folds,
            epsilon=epsilon(self._accounting, folds),
            next_clip_norm=norm,
            next_epsilon=epsilon(self._accounting, after),
        )

    def take(self, record: FoldPrivacy, number: int) -> None:
        """Continue from the record of a fold in a round, done or replayed."""
        self._newest = record
        self._folds, self._clip_norm = record.folds, record.next_clip_norm
        self._last = number, record.drawn_from
        self._stopping.spent(number, record.epsilon, record.next_epsilon)

    def begin_stage(self, stopping: EarlyStopping) -> None:
        """Begin the next workflow, which ends at once where another fold would cost too much."""
        self._stopping = stopping
        if self._newest is not None:
            stopping.spent(self._last[0], self._newest.epsilon, self._newest.next_epsilon)

    def _name(self, number: int, step: int) -> str:
        again = f"/{step}" if step else ""
        return f"flstream/privacy/{self._job.seed}/{number}{again}"

    def _drawn_from(self, to_fold: UpdatesToFold, number: int) -> int:
        """From how many sites the cohort of a fold was drawn; of all that a round asked for."""
        if self._draw is None or self._last[0] == number or len(to_fold.trainings) != 1:
            return NOT_DRAWN
        (training,) = to_fold.trainings
        if not self.is_draw(list(training.tasks), number):
            return NOT_DRAWN
        return self._draw[2]


def _kept_tensors(rule: AggregationRule, layout: Layout) -> list[str]:
    """Names of the tensors that a private job does not aggregate, since they are no floats."""
    selected = rule.selected(layout)
    return [
        spec.name for spec in layout.tensors if spec.name in selected and spec.dtype not in FLOATS
    ]
