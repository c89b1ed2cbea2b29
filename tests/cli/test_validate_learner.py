"""A learner that lacks a method which the job's workflows call is a mistake, before a run."""

import os
from pathlib import Path

import pytest
from cli_support import Flstream, WriteJob
from nightly_cases import first_and_nightly

HEAD = "import flstream.client as flare\n\n"
TRAINS = "    def train(self, model):\n        return model\n"
EVALUATES = "    def evaluate(self, model):\n        return model\n"
NEITHER = "    def setup(self):\n        pass\n"
BARE = HEAD + "class Mine(flare.Learner):\n" + TRAINS
WHOLE = BARE + EVALUATES
# The job of these tests sets it to 0.
EVERY = ("--set", "workflow.args.evaluate_every=3")
CROSS = ("--set", "workflow=[{ type = fedavg, args.evaluate_every = 0 }, { type = cross_site }]")
TWO = ("--set", "workflow=[{ type = evaluate }, { type = swarm }]")
EVER = "workflow.args.evaluate_every=1"
OWN = ("--set", "workflow.type=own.py:own", "--set", EVER)


@pytest.fixture
def validate(flstream_here: Flstream, write_job: WriteJob):
    """Return a function that writes a job with a learner, and validates it."""

    def run(learner: str, *words: str, command: Flstream = flstream_here, **files: str):
        path = write_job()
        text = path.read_text().replace("script = client.py", 'learner = "mine.py:Mine"')
        path.write_text(text)
        (path.parent / "mine.py").write_text(learner)
        for name, content in files.items():
            (path.parent / f"{name}.py").write_text(content)
        return command("validate", path, *words)

    return run


@pytest.mark.nightly
def test_a_learner_that_cannot_evaluate_is_refused_where_models_are_evaluated(
    validate, flstream: Flstream
):
    done = validate(BARE, *EVERY, command=flstream)
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        "train.learner: mine.py:Mine has no method evaluate(self, model), and fedavg has models "
        "evaluated (workflow.args.evaluate_every = 3); define it, or set "
        "workflow.args.evaluate_every = 0\n"
    ) in done.stderr


@first_and_nightly(
    ("words", "learner", "reason"),
    [
        (CROSS, BARE, "evaluate(self, model), and cross_site calls it (workflow[1].type); define"),
        (TWO, BARE, "evaluate(self, model), and evaluate calls it (workflow[0].type); define it"),
        (
            ("--set", "workflow.type=ditto", "--set", EVER),
            BARE,
            "evaluate(self, model), and ditto has models evaluated (workflow.args.evaluate_every =",
        ),
        ((), HEAD + "class Mine:\n" + EVALUATES, "train(self, model), and fedavg calls it (workf"),
    ],
)
def test_each_workflow_is_named_with_its_key(validate, words, learner, reason):
    done = validate(learner, *words)
    assert done.returncode == 2
    assert f"train.learner: mine.py:Mine has no method {reason}" in done.stderr


@first_and_nightly(
    "words",
    [
        (),  # evaluate_every = 0
        (*EVERY, "--set", "workflow.args.evaluate=received"),
        ("--set", "workflow.type=swarm"),
    ],
)
def test_where_no_model_is_evaluated_a_learner_need_not_be_able_to(validate, words):
    done = validate(BARE, *words)
    assert (done.returncode, done.stderr) == (0, "")


OWN_WORKFLOW = """
def own(run):
    model = run.initial_model()
    for number in run.rounds():
        model = run.fold(model, run.train(model, run.sample(number)))
{line}
    return model
"""


@first_and_nightly(
    ("line", "code"),
    [("        run.evaluate(model)", 2), ("", 0), ("        [].evaluate(model)", 0)],
)
def test_of_a_workflow_of_ones_own_its_calls_count(validate, line, code):
    done = validate(BARE, *OWN, own=OWN_WORKFLOW.format(line=line))
    assert done.returncode == code, done.stderr
    assert ("own.py:own has models evaluated" in done.stderr) == (code == 2)


ELSEWHERE = {
    "a class that has it": WHOLE,
    "a base class of the file": WHOLE.replace("Mine", "Base") + "class Mine(Base):\n" + NEITHER,
    "a base class beside it": "from base import Base\n\nclass Mine(Base):\n" + TRAINS,
    "an alias": BARE + "    evaluate = train\n",
    "the constructor": BARE + "    def __init__(self):\n        self.evaluate = self.train\n",
    "a later assignment": BARE + "\nMine.evaluate = Mine.train\n",
    "whatever it is asked for": BARE + "    def __getattr__(self, name): ...\n",
    "a library": "from ast import NodeVisitor as Base\n\nclass Mine(Base):\n" + TRAINS,
    "a decorator": HEAD + "def wrap(c): return c\n\n@wrap\nclass Mine(flare.Learner):\n" + TRAINS,
    "a block": BARE + "    if True:\n        from mine import evaluate\n",
    "a function": HEAD + "def Mine(): ...\n",
}


@first_and_nightly("where", ELSEWHERE, brief=1)
def test_a_method_that_is_or_may_be_elsewhere_is_not_missed(validate, where):
    done = validate(ELSEWHERE[where], *EVERY, base=WHOLE.replace("Mine", "Base"))
    assert (done.returncode, done.stderr) == (0, "")


@first_and_nightly(
    "learner",
    [
        "from flstream.client import Learner as L\n\nclass Mine(L):\n" + TRAINS,
        "from flstream import client\n\nclass Mine(client.Learner):\n" + TRAINS,
        "import flstream.client\n\nclass Mine(flstream.client.Learner):\n" + TRAINS,
        "class Mine(object):\n" + TRAINS,
        "from base import Base\n\nclass Mine(Base):\n" + TRAINS,
        BARE.replace("class", "import dataclasses\n\n@dataclasses.dataclass(frozen=True)\nclass"),
        BARE + "        evaluate = 3\n",
    ],
    brief=1,
)
def test_a_method_that_is_nowhere_is_missed_however_the_class_is_written(validate, learner):
    done = validate(learner, *EVERY, base=BARE.replace("Mine", "Base"))
    assert done.returncode == 2
    assert "mine.py:Mine has no method evaluate(self, model)" in done.stderr


def test_the_check_runs_no_code(validate, tmp_path: Path):
    done = validate(BARE + f"\nopen({os.fspath(tmp_path / 'ran')!r}, 'w')\n", *EVERY)
    assert done.returncode == 2
    assert not (tmp_path / "ran").exists()
