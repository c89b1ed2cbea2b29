"""`flstream validate` names every mistake, or says what a job would do and whether it fits."""

import json
from pathlib import Path

import pytest
from cli_support import Flstream, WriteJob

GIB = 1 << 30


def test_a_sound_job_gets_its_plan_and_is_not_run(
    flstream: Flstream, write_job: WriteJob, tmp_path: Path
) -> None:
    folder, args = write_job().parent, "workflow.args"
    done = flstream("validate", folder)
    assert "mini, 2 rounds, scored by metrics that come with updates of the next" in done.stdout
    chain = (
        "filters.up=[{ type = gaussian, sigma = 0.5 }, { type = exclude_vars, exclude_vars = b }]"
    )
    filtered = flstream("validate", folder, "--set", chain)
    assert "\nfilters        up: gaussian (sigma = 0.5), exclude_vars (" in filtered.stdout
    assert "filters" not in done.stdout
    every = "--set", f"{args}.evaluate_every=1", "--set", f"{args}.evaluate=task"
    done = flstream("validate", folder, *every)
    assert (done.returncode, done.stderr) == (0, "")
    assert "mini, 2 rounds, 2 of them evaluated" in done.stdout
    assert "8.0 KiB in 2 tensors, from model.py:build" in done.stdout
    assert "\nfits: at most " in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "\x1b" not in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["job"]


def test_a_job_that_does_not_fit_exits_1_and_says_what_it_lacks_and_what_would_help(
    flstream_here: Flstream, write_job: WriteJob
) -> None:
    path = write_job()
    # A terabyte, which is described and not made.
    (path.parent / "model.py").write_text(
        "import torch\ndef build(): return {'w': torch.zeros(1 << 38)}"
    )
    done = flstream_here("validate", path, "--json", "--set", "streaming.mode=native")
    assert (done.returncode, done.stderr) == (1, "")
    plan = json.loads(done.stdout)
    assert plan["model"] == {"bytes": 1024 * GIB, "tensors": 1}
    one = {"bytes": 2 * 1024 * GIB, "requests": 2, "chunks": 2}
    assert plan["transfer"]["round"]["down"] == plan["transfer"]["round"]["up"] == one
    assert plan["memory"]["total"] > 6 * 1024 * GIB > plan["memory"]["available"]
    assert plan["fits"] is False
    assert plan["lacking"][0].startswith("native mode with 2 processes for the sites needs about")
    assert "make the model smaller, or free memory" in plan["advice"]


def test_every_mistake_of_the_file_is_named_at_once(
    flstream_here: Flstream, write_job: WriteJob
) -> None:
    path = write_job(text="rounds = ten\nclients { count = 2, per_ruond = 1 }")
    done = flstream_here("validate", path, "--set", "streaming.mode=pul")
    assert (done.returncode, done.stdout) == (2, "")
    assert "has 3 mistakes" in done.stderr
    for key in ("rounds:", "clients.per_ruond:", "streaming.mode:"):
        assert key in done.stderr


def test_what_only_a_run_would_meet_is_named_with_what_is_wrong_with_the_code(
    flstream_here: Flstream, write_job: WriteJob
) -> None:
    path = write_job()
    (path.parent / "client.py").write_text("import nosuch")
    (path.parent / "model.py").write_text("def build(): raise OSError('no such weights')")
    done = flstream_here("validate", path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "has 2 mistakes" in done.stderr
    assert "train.script: client.py line 1 imports nosuch" in done.stderr
    assert "raised OSError: no such weights" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.nightly
def test_a_workflow_of_ones_own_is_imported_and_its_arguments_are_checked(
    flstream: Flstream, write_job: WriteJob
) -> None:
    path = write_job(text='workflow { type = "relay.py:relay", args { hops = 3 } }')
    (path.parent / "relay.py").write_text(
        "from flstream.workflows import WorkflowArgs, workflow\n"
        "class RelayArgs(WorkflowArgs):\n"
        "    hops: int = 2\n"
        "@workflow('relay', RelayArgs)\n"
        "def relay(run, args): ...\n"
        "print('imported')\n"
    )
    done = flstream("validate", path, "--json")
    assert (done.returncode, done.stderr) == (0, "imported\n")
    assert json.loads(done.stdout)["fits"] is True
    done = flstream("validate", path, "--set", "workflow.args.hops=far")
    assert (done.returncode, done.stdout) == (2, "")
    assert 'workflow.args.hops: given "far"; must be a whole number' in done.stderr


def test_code_that_is_no_workflow_has_exit_status_2_and_no_traceback(
    flstream: Flstream, write_job: WriteJob
) -> None:
    path = write_job(text='workflow.type = "relay.py:relay"')
    (path.parent / "relay.py").write_text("import nosuch\ndef relay(run): ...\n")
    done = flstream("validate", path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "workflow.type: " in done.stderr
    assert "relay.py line 1 raised ModuleNotFoundError" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.nightly
def test_emulated_links_are_in_the_plan(flstream_here: Flstream, write_job: WriteJob) -> None:
    links = "network={ up = 10 Mbit, latency = 50 ms, sites { site-2 { up = 1 Mbit, loss = 1% } } }"
    path = write_job()
    done = flstream_here("validate", path, "--set", links, "--set", "clients.count=3")
    there = "up 1 Mbit/s to 10 Mbit/s, latency 50 ms, loss 1 % at 1 of 3 sites"
    assert f"\nlinks          {there}" in done.stdout.replace("\n               ", " ")
    done = flstream_here("validate", path, "--set", "network.up=10 Mbit", "--json")
    link = {"up": 1e7, "down": None, "latency": 0.0, "jitter": 0.0, "loss": 0.0}
    assert json.loads(done.stdout)["network"]["site-1"] == link
