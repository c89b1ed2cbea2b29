"""``flstream sweep`` and ``flstream runs``, as somebody would type them."""

import json
import shlex
import signal

import psutil
import pytest
from cli_support import started

PAUSE = """
import sys
import time
from pathlib import Path


def once():
    mark = Path(__file__).with_name("paused")
    if "2" in sys.argv and not mark.exists():
        mark.touch()
        while not mark.stat().st_size:
            time.sleep(0.01)
"""
TEXT = """
engine.type = inline
train.args { lr = 1 }
"""


def test_a_sweep_that_is_stopped_goes_on_with_the_same_command(flstream_here, write_job, tmp_path):
    """Ctrl-C in the second run: nobody is trained twice, and no process is left."""
    path = write_job("import pause; pause.once(); model.params['weight'] += 1", TEXT)
    (path.parent / "pause.py").write_text(PAUSE)
    words = ("sweep", path, "--vary", "train.args.lr=1,2", "--run-dir", "swept")
    process = started(*words, cwd=tmp_path)
    assert any("1/2 lr=1" in line for line in process.stdout)
    processes = psutil.Process(process.pid).children(recursive=True)
    while not path.with_name("paused").exists():
        assert process.poll() is None
        psutil.wait_procs([], timeout=0.05)
    process.send_signal(signal.SIGINT)
    psutil.wait_procs([process], timeout=1)
    path.with_name("paused").write_text("over")  # or it would be waited for until patience ends
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "same command" in errors
    assert psutil.wait_procs(processes, timeout=10)[1] == []

    again = flstream_here(*words, "--json")
    assert (again.returncode, again.stderr) == (0, "")
    content = json.loads(again.stdout)
    assert [run["status"] for run in content["runs"]] == ["finished"] * 2
    first = (tmp_path / "swept" / "lr=1,seed=7" / "events.jsonl").read_text()
    assert "run_resumed" not in first
    assert (tmp_path / "swept" / "lr=1,seed=7" / "report.html").is_file()


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["--vary", "lr"], "key=value,value"),
        (["--vary", "train.args.lr=1", "--vary", "train.args.lr=2"], "varied twice"),
        (["--vary", "lr=0.1,0.2"], "train.args.lr"),
        (["--vary", "rounds=1,2", "--set", "rounds=3"], "rounds: it is varied, and set"),
        (["--vary", "rounds=none"], "rounds"),
        (["--variant", "rounds=1", "-r", "3"], "rounds: it is varied, and set"),
        (["--variant", "rounds"], "key=value,key=value"),
        (["--seeds", "0"], "--seeds 0: give at least 1"),
        (["--parallel", "x"], "--parallel"),
    ],
)
def test_what_makes_no_sense_is_a_sentence_and_status_2(refused, write_job, words, meant):
    assert meant in refused("sweep", write_job(text=TEXT), *words)


@pytest.mark.usefixtures("_without_pages")
def test_runs_are_listed_with_how_to_resume_them(flstream_here, refused, write_job, tmp_path):
    path = write_job(text=TEXT)
    flstream_here("simulate", path, "--run-dir", "all/one", "-q")
    flstream_here("simulate", path, "--run-dir", "all/two", "-q")
    summary = tmp_path / "all" / "two" / "summary.json"
    summary.write_text(summary.read_text().replace('"finished"', '"stopped"'))
    done = flstream_here("runs", "all")
    assert done.returncode == 0
    two, one, *_ = [line for line in done.stdout.splitlines() if line.startswith(("one", "two"))]
    assert "finished" in one
    assert "stopped" in two
    assert "flstream simulate all/two --run-dir all/two --resume" in done.stdout
    assert "all/one --resume" not in done.stdout
    assert "no run lies below" in refused("runs", path.parent)


@pytest.mark.usefixtures("_without_pages")
def test_runs_of_a_sweep_are_resumed_by_its_command(flstream_here, write_job, tmp_path):
    words = ["sweep", write_job(text=TEXT), "--vary", "rounds=1,2", "--run-dir", "all/swept"]
    flstream_here(*words)
    for summary in tmp_path.glob("all/swept/*/summary.json"):
        summary.write_text(summary.read_text().replace('"finished"', '"stopped"'))
    [line] = [it for it in flstream_here("runs", "all").stdout.splitlines() if "resume" in it]
    assert line == f"resume with: flstream {shlex.join(map(str, words))}"


@pytest.mark.usefixtures("_without_pages")
def test_what_runs_of_a_sweep_warn_of_is_said_once_with_their_names(flstream_here, write_job):
    path = write_job("pass", TEXT)
    done = flstream_here("sweep", path, "--vary", "rounds=1,2", "--run-dir", "swept")
    assert (done.returncode, done.stderr.count("warning")) == (0, 1)
    assert "warning: rounds=1,seed=7, rounds=2,seed=7: in round 1, the updates" in done.stderr


@pytest.mark.usefixtures("_without_pages")
def test_a_long_name_leaves_room_for_what_became_of_a_run(flstream_here, write_job):
    path, name = write_job(text=TEXT), "all/" + "long-" * 20
    flstream_here("simulate", path, "--run-dir", name, "-q")
    head = flstream_here("runs", "all").stdout.splitlines()[1].split()
    assert {"run", "status", "rounds"} <= {*head}
