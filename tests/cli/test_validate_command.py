"""`flstream validate` names every mistake, or says what a job would do and whether it fits."""

import json

GIB = 1 << 30
LINKS = "network={ up = 10 Mbit, latency = 50 ms, sites { site-2 { up = 1 Mbit, loss = 1% } } }"


def test_a_sound_job_gets_its_plan_and_is_not_run(flstream_here, write_job, tmp_path):
    folder = write_job().parent
    done = flstream_here("validate", folder, "--set", LINKS)
    assert (done.returncode, done.stderr) == (0, "")
    for words in (
        "mini, 2 rounds of client.py",
        "8.0 KiB in 2 tensors, from model.py:build",
        "about 16.0 KiB down and 16.0 KiB up",
        "not counted ",
        "activations, data",
        "\n\nfits, training not counted\n",
    ):
        assert words in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "\x1b" not in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["job"]
    anew = "each task runs the script anew; clients.parallel = 20 or a learner does not"
    assert anew not in done.stdout
    shared = flstream_here("validate", folder, "--set", "clients.count=20")
    assert anew in shared.stdout


def test_the_schema_of_job_files_is_one_json_document(flstream_here, refused):
    done = flstream_here("validate", "--schema")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["properties"]["clients"]["properties"]["threads"]["maximum"]
    assert "name the job file" in refused("validate")


def test_a_job_that_does_not_fit_exits_1_and_says_what_it_lacks_and_what_would_help(
    flstream_here, write_job
):
    path = write_job()
    # A terabyte, which is described and not made.
    (path.parent / "model.py").write_text(
        "import torch\ndef build(): return {'w': torch.zeros(1 << 38)}"
    )
    done = flstream_here("validate", path, "--json", "--set", "streaming.mode=native")
    assert (done.returncode, done.stderr) == (1, "")
    plan = json.loads(done.stdout)
    assert (plan["model_bytes"], plan["tensors"]) == (1024 * GIB, 1)
    assert plan["down_bytes"] == plan["up_bytes"] == 2 * 1024 * GIB
    assert plan["total_bytes"] > 6 * 1024 * GIB > plan["available"]["memory"]
    assert plan["worker_bytes"] > 2 * 1024 * GIB
    assert plan["fits"] is False
    assert plan["lacking"][0].startswith("native mode needs about ")
    assert plan["advice"][0].startswith("set streaming.mode = pull")


def test_what_only_a_run_would_meet_is_named_with_what_is_wrong_with_the_code(
    flstream_here, refused, write_job
):
    path = write_job()
    (path.parent / "client.py").write_text("import nosuch")
    (path.parent / "model.py").write_text("def build(): raise OSError('no such weights')")
    errors = refused("validate", path)
    assert "has 2 mistakes" in errors
    assert "train.script: client.py line 1 imports nosuch" in errors
    assert "raised OSError: no such weights" in errors
    (path.parent / "model.py").write_text(f"def build():\n    raise ValueError('x' * {5000})\n")
    done = flstream_here("validate", path)
    assert max(map(len, done.stderr.splitlines())) < 1500  # a long exception is shown in part


def test_a_learner_is_imported_and_has_to_train_or_to_evaluate(flstream_here, refused, write_job):
    path = write_job()
    (path.parent / "mine.py").write_text("class Net:\n    def fit(self, model): ...\n")
    take = ("--set", "train.script=null", "--set", "train.learner=mine:Net")
    assert "must be a class with train(model) or one with evaluate(model)" in refused(
        "validate", path, *take
    )
    (path.parent / "mine.py").write_text("class Net:\n    def train(self, model): ...\n")
    assert flstream_here("validate", path, *take).returncode == 0
    assert "mine.py:Net does not take train.args" in refused(
        "validate", path, *take, "--set", "train.args.depth=3"
    )


def test_code_of_ones_own_is_imported_whatever_it_prints_and_starts(flstream_here, write_job):
    path = write_job(text='workflow.type = "relay.py:relay"')
    (path.parent / "relay.py").write_text("print('imported')\ndef relay(run): ...\n")
    (path.parent / "mine.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait).start()\n"
        "class Rule:\n    def fold(self, values, weights): return values.mean(0)\n"
    )
    done = flstream_here("validate", path, "--json", "--set", "aggregation.method=mine.py:Rule")
    assert (done.returncode, done.stderr) == (0, "imported\n")
    assert json.loads(done.stdout)["fits"] is True


def test_arguments_that_a_factory_does_not_take_are_blamed_on_the_job_file(refused, write_job):
    assert "unexpected keyword argument 'depth' (check model.args)" in refused(
        "validate", write_job(), "--set", "model.args.depth=1"
    )
