"""A learner: one object a process, which works for one site after another."""

import pytest
import torch

from flstream.worker.messages import Answered, Failed, Logged, Ready

ADDS = """
import flstream.client as flare

class Mine(flare.Learner):
    def __init__(self, by=1):
        self.by = by
        self.set_up = []

    def setup(self):
        self.set_up.append(self.site.name)

    def train(self, model):
        for tensor in model.params.values():
            tensor += self.by * (self.site.index + 1)
        return flare.FLModel(model.params, metrics={"set_up": len(self.set_up)},
                             meta={"num_examples": self.site.index + 10})

    def evaluate(self, model):
        return flare.FLModel(metrics={"sum": sum(t.sum() for t in model.params.values())})
"""


def model():
    return {"w": torch.arange(6.0).reshape(2, 3), "n": torch.tensor(4)}


@pytest.mark.parametrize("exchange_format", ["pytorch", "numpy"])
def test_several_sites_each_start_from_the_same_model_which_comes_once(learner, exchange_format):
    with learner(ADDS, args={"by": 2}, exchange_format=exchange_format) as serving:
        names = [f"site-{number}" for number in (4, 1, 9)]
        trained = serving.server.train(model(), *names)
        assert serving.server.steps == ["turn", "received", "turn", "turn"]
        assert [site.site for site in trained.sites] == names
        assert {site.framework for site in trained.sites} == {exchange_format}
        for number, update in zip((4, 1, 9), serving.server.updates(trained), strict=True):
            assert update.keys() == {"n", "w"}
            assert torch.equal(update["w"], model()["w"] + 2 * number)
            assert update["n"] == 4 + 2 * number
        # It is set up when the site changes, and not otherwise.
        counts = []
        for name in ("site-9", "site-9", "site-2", "site-9"):
            trained = serving.server.train(model(), name)
            [site] = trained.sites
            counts.append(site.metrics["set_up"])
            assert set(serving.server.fetch(trained)) == {"n", "w"}
        assert counts == [3, 3, 4, 5]
        assert (site.weight, site.params_type, site.partial) == (18.0, "FULL", False)
        # Scores come together, with the weights that the sites have given.
        scored = serving.server.evaluate(model(), "site-2", "site-5", round_number=3)
        assert (scored.effect, [s.site for s in scored.sites]) == (3, ["site-2", "site-5"])
        assert [(s.metrics, s.has_params) for s in scored.sites] == [({"sum": 19.0}, False)] * 2
    assert serving.turns[:4] == ["site-4", "site-1", "site-9", None]
    assert serving.turns[-3:] == ["site-2", "site-5", None]


def test_what_a_method_does_wrong_fails_that_site_alone_and_leaves_no_trace(learner):
    with learner("""
        import flstream.client as flare

        class Mine(flare.Learner):
            def setup(self):
                assert self.site.index != 1, "no data"
            def train(self, model):
                index = self.site.index
                if index == 2:
                    return model.params
                model.params["w"] /= 0 if index == 3 else 1
                if index == 4:
                    raise SystemExit(5)
                if index == 7:
                    model.params[3] = model.params["w"]
                metrics = {5: {"round": 1}, 6: {"m" * 1001: 1}}.get(index, {})
                return flare.FLModel(model.params, metrics=metrics)
    """) as serving:
        trained = serving.server.train(model(), *[f"site-{number}" for number in range(1, 9)])
        failures = {site: reason for site, _, reason in serving.server.failures()}
        assert failures.keys() == {f"site-{number}" for number in (2, 3, 5, 6, 7, 8)}
        for number, words in {
            2: "client.py, line 6 raised AssertionError: no data",
            3: "Mine.train() returned a dict; it must return an FLModel",
            5: "client.py, line 13 raised SystemExit: 5",
            6: "a metric may not be named 'round'",
            7: f"the metric '{'m' * 40}'... has 1001 characters",
        }.items():
            assert words in failures[f"site-{number}"]
        assert [site.site for site in trained.sites] == ["site-1", "site-4"]
        first, other = serving.server.updates(trained)
        assert first.keys() == other.keys() == {"w", "n"}
        assert torch.equal(first["w"], model()["w"])
        assert torch.isinf(other["w"]).any()


def test_where_every_site_fails_the_answer_says_so_and_names_what_is_missing(learner):
    with learner("import flstream.client as f\nclass Mine(f.Learner): pass") as serving:
        assert serving.server.train(model(), "site-1", "site-2") == Answered(1, [])
        reasons = [reason for _, _, reason in serving.server.failures()]
        assert [("define train(self, model)" in reason) for reason in reasons] == [True] * 2
        assert serving.server.evaluate(model(), "site-1").sites == []
        [(_, _, reason)] = serving.server.failures()
        assert "has no method evaluate(self, model); define it" in reason


def test_a_model_that_does_not_arrive_is_asked_for_once_and_fails_every_site(learner):
    with learner(ADDS) as serving:
        serving.server.hear(Ready)
        serving.server.ask("train", model(), "site-1", "site-2", "site-3", token=b"0" * 16)
        assert serving.server.hear(Answered).sites == []
        reasons = {reason for _, _, reason in serving.server.failures()}
        assert len(serving.server.failures()) == 3
        assert len(reasons) == 1
        assert "the model did not arrive: server refused" in reasons.pop()
        trained = serving.server.train(model(), "site-1")  # and it goes on
        assert serving.server.fetch(trained)["n"] == 5


def test_the_learner_knows_its_site_and_may_log_for_it(learner):
    with learner("""
        import flstream.client as flare

        class Mine(flare.Learner):
            def __init__(self, sites, seed):
                self.facts = sites, seed

            def train(self, model):
                site = self.site
                assert self.facts[0] == site.clients
                assert isinstance(self.facts[1], int)
                assert (site.name, site.index, site.round, site.seed) == ("site-7", 6, 4, 7)
                assert (site.job, site.clients, site.total_rounds) == ("test", 9, 5)
                assert flare.get_site_name() == model.meta["site_name"] == "site-7"
                assert model.current_round == 3
                flare.log("loss", 0.5)
                return flare.FLModel(model.params)
    """) as serving:
        serving.server.fetch(serving.server.train(model(), "site-7", round_number=4))
        assert Logged(4, "site-7", "loss", 0.5) in serving.server.heard


def test_an_update_that_lacks_what_is_aggregated_is_refused_where_it_is_made(learner):
    lacking = """
        import flstream.client as flare

        class Mine(flare.Learner):
            def train(self, model):
                meta = {"partial": True} if self.site.index else {}
                params = {"n": model.params["n"]}
                if self.site.index == 2:
                    params = {**model.params, "stray": model.params["w"]}
                return flare.FLModel(params, meta=meta)
    """
    with learner(lacking, exclude=("^b",)) as serving:
        given = {**model(), "b": torch.ones(2)}
        trained = serving.server.train(given, "site-1", "site-2", "site-3")
        [(site, _, reason)] = serving.server.failures()
        assert site == "site-1"
        assert "lacks tensor 'w'" in reason
        # One that is not the model's is sent, for the server to refuse.
        updates = serving.server.updates(trained)
        assert [update.keys() for update in updates] == [{"n"}, {"n", "w", "stray"}]
        # Unless it makes the update larger than a model, which the answer has no room for.
        serving.server.train(given, "site-3", "site-4", round_number=2, inline=40)
        reasons = {site: reason for site, _, reason in serving.server.failures()}
        assert reasons.keys() == {"site-3"}
        assert "tensor 'stray' is not part of the model" in reasons["site-3"]
        assert trained.sites[0].partial


def test_tied_tensors_travel_once_as_they_were_when_train_returned(learner):
    """All sites may train in the one module that the object has."""
    tied = torch.ones(3)
    with learner("""
        import torch, flstream.client as flare

        class Mine(flare.Learner):
            mine = torch.zeros(3)
            def train(self, model):
                assert model.params["a"] is model.params["b"]
                self.mine.copy_(model.params["b"]).add_(self.site.index)
                return flare.FLModel({"a": self.mine, "b": self.mine.clone()})
    """) as serving:
        trained = serving.server.train({"a": tied, "b": tied}, "site-2", "site-3")
        for value, update in zip((2, 3), serving.server.updates(trained), strict=True):
            assert update["a"].tolist() == [value] * 3
            assert update["a"] is update["b"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("class Mine:\n def __init__(self): raise OSError('no data')", "client.py, line 2 raised"),
        ("class Mine:\n def __init__(self, lr): pass", "client.py raised TypeError"),
        ("Mine = 3", "Mine is a int; name a class"),
        ("import nowhere_to_be_found\nclass Mine: pass", "client.py, line 1 raised ModuleNotFound"),
    ],
)
def test_a_class_that_cannot_be_made_ends_the_process_with_the_reason(learner, text, reason):
    with learner(text) as serving:
        failed = serving.server.hear(Failed)
        assert (failed.site, failed.effect) == ("", 0)
        assert reason in failed.reason
        assert serving.server.heard == []  # it was never ready
