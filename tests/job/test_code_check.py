"""What is wrong with a job's code is found by looking at it: nothing of it is run."""

import pytest

from flstream.job.code_check import code_problems
from flstream.job.kept_variables import kept_variables
from flstream.job.scoring import tells_tasks_apart

MODEL = "def build(): ..."


@pytest.fixture
def problems(load, folder):
    """Return a function that writes a script and a model, and returns what is wrong with them."""

    def problems(script="", model=MODEL, *overrides):
        (folder / "client.py").write_text(script)
        (folder / "model.py").write_text(model)
        found = code_problems(load("", *overrides))
        return [str(problem).replace(f"{folder}/", "") for problem in found]

    return problems


def test_sound_code_has_no_problems_and_is_not_run(problems):
    script = "import os.path, torch, model\nfrom . import x\nfrom flstream.client import init\n1/0"
    assert problems(script, "import numpy\ndef build(): ...\n1/0") == []
    assert problems("try:\n    import nosuch\nexcept ImportError:\n    nosuch = None") == []


LEARNER = "train.learner=client:Mine", "train.script=null"


@pytest.mark.parametrize(
    ("script", "model", "overrides", "start", "words"),
    [
        ("import nosuch.thing", MODEL, (), "train.script: client.py line 1", "no module nosuch"),
        ("", f"from nowhere import x\n{MODEL}", (), "model.factory: model.py line 1", "nowhere"),
        ("import nosuch\nclass Mine: ...", MODEL, LEARNER, "train.learner: client.py line 1", ""),
        ("import nvflare.client", MODEL, (), "train.script", "write import flstream.client as"),
        ("", MODEL, ("model.factory=os.path:join",), "model.factory", "no installed module os.p"),
        ("", MODEL, ("model.factory=json:JsonDecoder",), "model.factory", "did you mean JSONDecod"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_code_is_named_with_its_line(
    problems, script, model, overrides, start, words
):
    problem, *_ = problems(script, model, *overrides)
    assert problem.startswith(start)
    assert words in problem


def test_a_factory_beside_a_file_with_the_weights_is_looked_at(problems, folder):
    (folder / "m.safetensors").touch()
    initial = f"model.initial={folder}/m.safetensors"
    assert len(problems("", f"import nosuch\n{MODEL}", initial)) == 1
    assert problems("", f"import nosuch\n{MODEL}", initial, "model.factory=null") == []


@pytest.mark.parametrize(
    ("script", "overrides", "due"),
    [
        (
            "import flstream.client as flare\nfrom flstream.client import recieve\n"
            "flare.init()\nwhile flare.is_runing(): ...",
            (),
            [
                "line 2 uses recieve, which flstream.client has not; did you mean receive?",
                "line 4 uses is_runing, which flstream.client has not; did you mean is_running?",
            ],
        ),
        (
            "import nvflare.client as flare\nimport nvflare.app_opt.lightning\n"
            "from nvflare.client import *\nimport nvflare.client.api\nflare.recieve()",
            ("train.alias=nvflare",),
            [
                "line 2 imports nvflare.app_opt.lightning, which train.alias has not; it has",
                "line 5 uses recieve, which nvflare.client has not; did you mean receive?",
            ],
        ),
    ],
)
def test_names_that_the_client_api_has_not_are_named(problems, script, overrides, due):
    found = problems(script, MODEL, *overrides)
    assert len(found) == len(due)
    for problem, start in zip(found, due, strict=True):
        assert problem.startswith(f"train.script: client.py {start}")


KEEPS = """
import nvflare.client as flare
optimizer = torch.optim.SGD([], 0.1)
net = Net()
while flare.is_running():
    net.load_state_dict(flare.receive().params)
    optimizer.step()
"""


def test_under_the_alias_a_script_that_keeps_variables_needs_a_process_a_site(problems, folder):
    (problem,) = problems(KEEPS, MODEL, "train.alias=nvflare", "clients.parallel=2")
    assert problem.startswith("clients.parallel: 2 processes for 8 clients; must be 8")
    assert "client.py keeps optimizer from round to round" in problem
    assert problems(KEEPS, MODEL, "train.alias=nvflare") == []
    (folder / "client.py").write_text("while flare.is_running(:")
    assert kept_variables(folder / "client.py") == []


def test_a_script_that_asks_for_the_kind_of_its_task_is_scored_by_a_task_and_another_is_not(
    folder, load, mistakes
):
    """A metric may end a job where nothing is evaluated, if its updates bring scores."""
    ends = 'stop_when = "accuracy >= 1", workflow.args.evaluate_every = 0'
    assert load(ends).score_sources == ["received"]
    assert [problem.key for problem in mistakes(ends, "workflow.args.evaluate=task")]
    (folder / "client.py").write_text("def main():\n    from loop import run")
    (folder / "loop.py").write_text("import flstream.client as flare\nflare.is_evaluate()\n")
    assert tells_tasks_apart(folder / "client.py")
    assert [problem.key for problem in mistakes(ends)] == ["stop_when"]
    assert load(ends, "workflow.args.evaluate=received").score_sources == ["received"]
