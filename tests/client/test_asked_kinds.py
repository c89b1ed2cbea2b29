"""An answer says which kinds of task the code told apart, and code may not know of one."""

import pytest
import torch

from flstream.worker.messages import Answered, Failed

SCRIPT = """
import flstream.client as flare

EARLY
flare.init()
while flare.is_running():
    model = flare.receive()
    ASKS
    flare.send(flare.FLModel(params={"w": torch.ones(2)}, metrics={"loss": 1.0}))
"""
MODEL = {"w": torch.zeros(2)}
WHERE = pytest.mark.parametrize("site", ["site-1", None])


def loop(asks="", early=""):
    return "import torch\n" + SCRIPT.replace("EARLY", early).replace("ASKS", asks or "pass")


DECORATED = "@flare.evaluate\ndef score(model):\n    return {}"


@WHERE
@pytest.mark.parametrize(
    ("text", "due"),
    [
        (loop(), []),
        (loop("flare.is_evaluate"), []),
        (loop("flare.is_train()"), ["evaluate"]),
        (loop("flare.is_evaluate()"), ["evaluate"]),
        (loop("flare.is_submit_model()"), ["submit_model"]),
        (loop("flare.get_task_name()"), ["evaluate", "submit_model"]),
        (loop(early="flare.is_train()"), []),
        (loop(early=DECORATED), []),
        (loop("score()", early=DECORATED), ["evaluate"]),
    ],
)
def test_the_first_answer_says_what_the_script_asked(script, text, due, site):
    with script(text, site=site) as serving:
        answer = serving.server.train(MODEL, "site-1")
        assert answer.sites[0].asks == due
        serving.server.fetch(answer)


def test_each_answer_says_what_was_asked_in_its_own_task(script):
    with script(loop("model.current_round and flare.is_train()"), site="site-1") as serving:
        for number, due in ((1, []), (2, ["evaluate"]), (1, [])):
            answer = serving.server.train(MODEL, "site-1", round_number=number)
            assert answer.sites[0].asks == due
            serving.server.fetch(answer)


METHODS = """
    def evaluate(self, model):
        return FLModel(metrics={"loss": 1.0})
    def submit_model(self, model):
        return FLModel(params={"w": torch.ones(2)})
"""
LEARNER = """
import torch
from flstream.client import FLModel
class Mine:
    def train(self, model):
        return FLModel(params=model.params)
"""


@pytest.mark.parametrize(
    ("text", "due"), [(LEARNER, []), (LEARNER + METHODS, ["evaluate", "submit_model"])]
)
def test_a_learner_asks_for_what_it_has_methods_for(learner, text, due):
    with learner(text) as serving:
        answer = serving.server.train(MODEL, "site-1")
        assert answer.sites[0].asks == due
        serving.server.fetch(answer)
        submitted = submit(serving)
        [site] = submitted.sites
        assert site.has_params == (site.update is not None) == bool(due)


def submit(serving):
    serving.server.ask("submit_model", MODEL, "site-1", keeps_state=False)
    return serving.server.hear(Answered)


KNOWS = """
    if flare.is_submit_model():
        assert model.params == {} and not list(model.params)
        flare.send(flare.FLModel(params={"w": torch.full((2,), 3.0)}))
        continue
"""


@WHERE
def test_a_script_that_asks_submits_a_model(script, site):
    with script(loop(KNOWS), site=site) as serving:
        answer = submit(serving)
        assert serving.server.fetch(answer)["w"].tolist() == [3.0, 3.0]


@WHERE
@pytest.mark.parametrize(
    "body",
    [
        "",  # it answers as if it had trained
        'model.params["w"] += 1',
        "net.load_state_dict(model.params)",
        "flare.receive(into=net)",
        "if not model.params: break",
        "if flare.is_train(): raise ValueError",
    ],
)
def test_a_script_that_does_not_ask_leaves_the_task_and_goes_on(script, body, site):
    early = "net = torch.nn.Linear(1, 1)"
    body = body and f"if not flare.is_train():\n        {body}"
    with script(loop(body, early=early), site=site) as serving:
        answer = submit(serving)
        assert (answer.sites[0].has_params, answer.sites[0].update) == (False, None)
        assert serving.server.failures() == []
        # Its loop begins anew where it was left.
        trained = serving.server.train(MODEL, "site-1", round_number=2)
        assert serving.server.fetch(trained)["w"].tolist() == [1.0, 1.0]


def test_of_several_sites_those_that_know_of_the_task_submit(script):
    knows = KNOWS.replace("if flare", 'if flare.get_site_name() == "site-2" and flare')
    with script(loop(knows)) as serving:
        serving.server.ask("submit_model", MODEL, "site-1", "site-2", "site-3", keeps_state=False)
        answer = serving.server.hear(Answered)
        assert [each.has_params for each in answer.sites] == [False, True, False]
        assert [list(update) for update in serving.server.updates(answer)] == [["w"]]


def test_code_that_asks_and_fails_has_failed(script):
    with script(loop("if flare.is_submit_model(): raise OSError('no best')")) as serving:
        serving.server.ask("submit_model", MODEL, "site-1", keeps_state=False)
        assert "raised OSError: no best" in serving.server.hear(Failed).reason
