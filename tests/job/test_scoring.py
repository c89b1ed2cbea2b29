"""Whether a script asks which kind of task it was given, found without running it."""

import pytest

from flstream.job import JobError, load_job
from flstream.job.scoring import tells_tasks_apart

ASKS = [
    "import flstream.client as flare\nif flare.is_evaluate(): pass",
    "import flstream.client as flare\ntrains = flare.is_train()",
    "from flstream.client import get_task_name as task",
    "import flstream.client as flare\nprint(getattr(flare, 'is_submit_model')())",
    "import flstream.client as flare\n@flare.evaluate\ndef score(model): ...",
    "from flstream.client import evaluate\n@evaluate()\ndef score(model): ...",
    "model = 1\nif model.meta['task'] == 'evaluate': pass",
    "model = 1\nif model.meta['task'] != 'train': pass",
    "model = 1\nif model.meta.get('task', '') != 'train': pass",
    "from nvflare.client.api import is_evaluate",
    "from flstream.client import *\nif is_evaluate(): pass",
    "import flstream.client as flare\n@flare.evaluate\nasync def score(model): ...",
]
ASKS_NOT = [
    "import flstream.client as flare\nmodel = flare.receive()",
    "net.evaluate(loader)",
    "def evaluate(net): ...\nevaluate(1)",
    "is_train = True  # flare.is_evaluate() would tell",
    "from sklearn.model_selection import evaluate",
    "trainer.evaluate()",
    "model = 1\nmodel.meta.get('site_name')",
]


@pytest.mark.parametrize("code", ASKS)
def test_a_script_that_asks_for_the_kind_of_its_task_is_recognised(tmp_path, code):
    (tmp_path / "client.py").write_text(code)
    assert tells_tasks_apart(tmp_path / "client.py")


@pytest.mark.parametrize("code", ASKS_NOT)
def test_a_script_that_does_not_ask_is_recognised(tmp_path, code):
    (tmp_path / "client.py").write_text(code)
    assert not tells_tasks_apart(tmp_path / "client.py")


def test_the_files_that_a_script_imports_from_beside_it_count_and_others_do_not(tmp_path):
    (tmp_path / "client.py").write_text("def main():\n    from parts import loop")
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "__init__.py").write_text("")
    (tmp_path / "other.py").write_text(ASKS[0])
    (tmp_path / "parts" / "loop.py").write_text("x = 1")
    assert not tells_tasks_apart(tmp_path / "client.py")
    (tmp_path / "parts" / "loop.py").write_text(ASKS[0])
    assert tells_tasks_apart(tmp_path / "client.py")


JOB = """
name = test, rounds = 2, clients.count = 1, stop_when = "accuracy >= 1"
model.factory = "model:build"
train.script = client.py, workflow.args.evaluate_every = 0
"""


def test_a_job_may_stop_by_a_metric_where_nothing_is_evaluated_but_updates_bring_scores(tmp_path):
    (tmp_path / "model.py").write_text("def build(): ...")
    (tmp_path / "job.conf").write_text(JOB)
    (tmp_path / "client.py").write_text(ASKS_NOT[0])
    assert load_job(tmp_path / "job.conf").score_sources == ["received"]
    explicit = "workflow.args.evaluate=task"
    with pytest.raises(JobError, match=r"null where workflow\.args\.evaluate_every is 0"):
        load_job(tmp_path / "job.conf", [explicit])
    (tmp_path / "client.py").write_text(ASKS[0])
    with pytest.raises(JobError, match=r"null where workflow\.args\.evaluate_every is 0"):
        load_job(tmp_path / "job.conf")
    explicit = "workflow.args.evaluate=received"
    assert load_job(tmp_path / "job.conf", [explicit]).score_sources == ["received"]
