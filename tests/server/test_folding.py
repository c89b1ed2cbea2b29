"""A round's fold: an update that turns out to be of no use leaves no trace in the model."""

from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from support import assert_same_tensors, tensor

from flstream.aggregation.partial_sum import PartialSum
from flstream.aggregation.rules import AggregationRule
from flstream.aggregation.update import CollectedUpdate
from flstream.aggregation.update_body import LocalBody
from flstream.codecs.chain import CodecChain, UpdateForm
from flstream.errors import AbortedError, SimulationError, UpdateRefusedError
from flstream.job.aggregation_section import ServerOptimizerSection
from flstream.job.bodies import MAIN
from flstream.model.checkpoint import FileSource, write_checkpoint
from flstream.model.memory import MemoryBody
from flstream.runs.model_draft import model_draft
from flstream.runs.results import TaskCost, TrainResult
from flstream.server.cohort_fold import CohortFold
from flstream.server.program_view import Model
from flstream.server.training import SiteTraining

# Three ranges of the smallest walk, and some of a fourth.
ELEMENTS = 200_000
SITES = ["site-1", "site-2", "site-3", "site-4"]


def state(seed):
    return {
        "w": torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(seed)),
        "n": tensor("I32", (5,), seed),
    }


class Kept(LocalBody):
    """The body of an update that notes how it was let go of."""

    def __init__(self, source):
        super().__init__(source)
        self.released = []

    def release(self, failure=""):
        self.released.append(failure)


class DiesHalfway:
    """A body that can be read up to its middle, as when its worker dies then."""

    def __init__(self, body):
        self.layout, self._body = body.layout, body

    def read(self, start, stop, into):
        if stop > self.layout.nbytes // 2:
            raise UpdateRefusedError("site-2", "could not be fetched: the worker died")
        self._body.read(start, stop, into)


def not_a_number(body):
    values = {name: value.clone() for name, value in body.tensors.items()}
    values["w"][ELEMENTS // 2] = float("nan")
    return MemoryBody.of(values)


def of_another_shape(body):
    return MemoryBody.of({"w": body.tensors["w"].reshape(2, -1), "n": body.tensors["n"]})


def updates(useless=lambda body: body):
    """One of each site, of which that of site-2 may be another than it should."""
    bodies = {site: MemoryBody.of(state(n)) for n, site in enumerate(SITES, start=1)}
    bodies["site-2"] = useless(bodies["site-2"])
    return [kept(site, bodies[site], float(n)) for n, site in enumerate(SITES, start=1)]


def kept(site, source, weight):
    return CollectedUpdate(site, Kept(source), UpdateForm(source), weight)


def without_site_2():
    return [each for each in updates() if each.site != "site-2"]


@pytest.fixture
def base(tmp_path):
    write_checkpoint(tmp_path / "base.safetensors", MemoryBody.of(state(0)))
    return FileSource(tmp_path / "base.safetensors")


@pytest.fixture
def sums(tmp_path, base):
    return PartialSum(tmp_path / "sum.safetensors", base, AggregationRule())


@pytest.fixture
def fold(tmp_path, base):
    """Folds, and gives the model, its digest, and who was refused for what reason."""

    def fold(collected, least=1, sums=None, groups=(), on_range=lambda *_: None):
        model, there = Model(0, 0, "0" * 32), {each.site: each for each in collected}
        answers = TrainResult(SITES, [1.0] * 4, [{}] * 4, [b""], [0] * 4, TaskCost())
        tasks = dict.fromkeys(SITES)
        training = SiteTraining(
            None, {}, "", 1, None, model, tasks, least, None, 1.0, b"", result=answers
        )
        to_fold = SimpleNamespace(
            rules={},
            unread=None,
            trainings=[training],
            members=[(training, site) for site in there],
            trainings_of=lambda site: [training],
        )
        context = SimpleNamespace(
            job=SimpleNamespace(
                aggregation=SimpleNamespace(memory_budget=1 << 20),
                server_optimizer=ServerOptimizerSection(),
            ),
            rule=AggregationRule(),
            expect_on=lambda _=None: None,
            picture=SimpleNamespace(fold=on_range),
            pool=SimpleNamespace(explain=lambda error: error),
            emit=lambda *events: None,
        )
        draft = model_draft(
            tmp_path / "next.safetensors",
            {MAIN: base.layout},
            {},
            AggregationRule(),
            None,
            None,
            CodecChain(),
            base,
        )
        store = SimpleNamespace(
            joined=lambda model: base,
            bodies=lambda model: [],
            writing=lambda *_, **__: draft,
            finish=lambda make_durable, *_: make_durable()[MAIN],
        )
        update_store = SimpleNamespace(updates=lambda _, sites: [there[site] for site in sites])
        run_state = SimpleNamespace(
            context=context,
            store=store,
            update_store=update_store,
            tasks=None,
            private=None,
            keeps_last_models=False,
        )
        rounds = CohortFold(run_state, model, to_fold)
        rounds._sums = sums
        for group in groups:
            rounds._add(sums, group)
        digest = rounds.make(1).record
        return load_file(tmp_path / "next.safetensors"), digest, rounds.refused

    return fold


def mean(*numbers):
    """The weighted mean of these sites in float64."""
    total = sum(numbers)
    w, n = (sum(each * state(each)[name].double() for each in numbers) for name in ("w", "n"))
    return {"w": (w / total).float(), "n": (n / total).round().int()}


USELESS = [
    (not_a_number, "the update of site-2 is not finite: tensor 'w' at [100000] is nan"),
    (DiesHalfway, "the update of site-2 could not be fetched: the worker died"),
    (of_another_shape, "the update of site-2 does not fit the model: tensor 'w' has shape"),
]


@pytest.mark.parametrize("is_summed", [False, True])
@pytest.mark.parametrize(("useless", "reason"), USELESS)
def test_without_an_update_of_no_use_the_model_is_exactly_the_mean_of_the_others(
    fold, sums, useless, reason, is_summed
):
    collected = updates(useless)
    if is_summed:
        model, digest, failures = fold(collected[3:], sums=sums, groups=[collected[:3]])
        assert sums.sites == ["site-1", "site-3", "site-4"]
    else:
        model, digest, failures = fold(collected)
    assert_same_tensors(model, mean(1, 3, 4))
    assert digest == fold(without_site_2())[1]
    assert list(failures) == ["site-2"]
    assert failures["site-2"].startswith(reason)
    # Its worker is told; the others are let go of once they are in a sum, or the model is durable.
    let_go = [""] if is_summed else []
    due = [let_go, [failures["site-2"]], let_go, let_go]
    assert [each.body.released for each in collected] == due


def test_each_is_refused_in_turn_and_too_few_left_end_the_round_with_who_and_why(fold):
    collected = updates(not_a_number)
    collected[3] = kept("site-4", of_another_shape(MemoryBody.of(state(4))), 4.0)
    model, _, failures = fold(collected)
    assert sorted(failures) == ["site-2", "site-4"]
    assert_same_tensors(model, mean(1, 3))
    with pytest.raises(SimulationError) as caught:
        fold(updates(DiesHalfway), least=4)
    assert "so 3 of 4 sites are left to train round 1, and 4 have to" in str(caught.value)
    assert "site-2: the update of site-2 could not be fetched: the worker died" in str(caught.value)


def test_a_walk_that_is_called_off_blames_nobody(fold):
    collected = updates()

    def stop(*_):
        raise AbortedError("the run was stopped")

    with pytest.raises(AbortedError):
        fold(collected, on_range=stop)
    assert [each.body.released for each in collected] == [[]] * 4
