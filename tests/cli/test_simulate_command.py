"""`flstream simulate` runs jobs, reports them to people and scripts, and resumes the right run."""

import json
import os
import re
import signal

import psutil
import pytest
from cli_support import started
from nightly_cases import first_and_nightly

from flstream import __version__

pytestmark = pytest.mark.usefixtures("_without_pages")
INLINE = ("--engine", "inline")
WAITS_IN_ROUND_2 = """\
if model.current_round == 1 and flare.get_site_name() == "site-1":
        import time
        open({begun!r}, "w").close()
        time.sleep(600)
"""


PRINTS = """
import os

class Tracker:
    def __init__(self, run):
        print("printed")
        if run.folder.name == "local":
            os.system("echo echoed; echo complained >&2")

    def scalars(self, source, step, values, time): ...
    def text(self, source, step, key, text, time): ...
    def flush(self): ...

    def close(self):
        print("closed")
"""


JSON = ("--json", "--set", "tracking.type=prints.py:Tracker", "--run-dir")


def test_json_is_one_document_and_nothing_else_though_a_tracker_prints(
    flstream_here, write_job, tmp_path
):
    job = write_job()
    (job.parent / "prints.py").write_text(PRINTS)
    done = flstream_here("simulate", job, *JSON, "run", *INLINE)
    summary = json.loads(done.stdout)
    assert (summary["warnings"], done.stderr) == ([], "")
    assert summary == json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["status"], summary["rounds_completed"]) == ("finished", 2)
    assert summary["transfer"]["down"]["bytes"] == 2 * 2 * summary["model"]["bytes"]


def test_without_a_terminal_a_run_is_plain_lines_and_a_finished_one_is_left_as_it_is(
    flstream_here, write_job, tmp_path
):
    job = write_job()
    # Nothing was begun.
    done = flstream_here("simulate", job.parent, "--resume", *INLINE)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert "\r" not in done.stdout
    lines, tables = done.stdout.split("\n\n", maxsplit=1)
    assert lines.startswith("00:00:00  mini: 2 rounds, 2 sites, pull mode, chunks of 2 MiB\n")
    assert "round 2 of 2: done in" in lines
    assert max(map(len, tables.splitlines())) <= 80
    assert "finished after 2 rounds" in tables
    [run] = (tmp_path / "runs").iterdir()
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert run / "global.safetensors" in before

    done = flstream_here("simulate", job, "--resume", *INLINE)
    assert (done.returncode, done.stderr) == (0, "")
    left = f"nothing is left to do: the run in runs/{run.name} is finished\n"
    assert done.stdout.startswith(left)
    done = flstream_here("simulate", job, "--resume", "--run-dir", run, "--json", *INLINE)
    assert json.loads(done.stdout) == json.loads((run / "summary.json").read_text())
    done = flstream_here("simulate", job, "--resume", "--quiet", *INLINE)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_a_finished_run_goes_back_to_a_round_and_is_no_other_jobs(
    flstream_here, refused, write_job
):
    job = write_job()
    words = ("simulate", job, "--run-dir", "run", *INLINE)
    first = json.loads(flstream_here(*words, "--json").stdout)
    again = flstream_here(*words, "--resume", "--from-round", "1", "--json")
    assert json.loads(again.stdout)["model"] == first["model"]
    for more, reason in (
        (("--resume", "--from-round", "9"), "--from-round 9 names no round"),
        (("--from-round", "1"), "it goes with --resume"),
        (("--resume", "--set", "seed=8"), "seed is 7 there and 8 here"),
    ):
        assert reason in refused(*words, *more)


def test_every_mistake_in_a_job_file_is_named_and_a_folder_in_use_left_alone(
    refused, write_job, tmp_path
):
    path = write_job()
    assert "job is not empty" in refused("simulate", path, "--run-dir", "job")
    assert {each.name for each in path.parent.iterdir()} == {"job.conf", "model.py", "client.py"}
    with path.open("a") as file:
        file.write("rounds = ten\nclients { count = 2, per_ruond = 1 }\ntrain.script = clinet.py\n")
    for command in ("simulate", "validate"):
        errors = refused(command, path, "--set", "workflow.type=fedavgg", "--run-dir", "run")
        assert "has 4 mistakes" in errors
        keys = {line.split(":")[0].strip() for line in errors.splitlines()[1:]}
        assert keys == {"rounds", "clients.per_ruond", "train.script", "workflow.type"}
    assert not (tmp_path / "run").exists()


def test_a_workflow_that_the_job_rules_out_is_refused_and_leaves_no_folder(
    refused, write_job, tmp_path
):
    job = write_job()
    wrong = ("--set", "workflow.type=feddyn", "--set", "aggregation.method=median", *INLINE)
    for more, left in (((), []), (("--run-dir", "runs/mine"), ["mine"])):
        assert "leave out aggregation.method" in refused("simulate", job, *wrong, *more)
        assert [folder.name for folder in (tmp_path / "runs").iterdir()] == left
    assert list((tmp_path / "runs" / "mine").iterdir()) == []


def test_ctrl_c_ends_a_run_whose_own_code_is_slow_to_import(write_job, tmp_path):
    path, begun = write_job(), tmp_path / "begun"
    os.mkfifo(begun)
    slow = f"import time\nopen({str(begun)!r}, 'w').close()\ntime.sleep(600)\nclass Slow: ..."
    (path.parent / "slow.py").write_text(slow)
    own = ("--set", 'filters.up=["slow.py:Slow"]')
    process = started("simulate", path, "--run-dir", "run", *own, cwd=tmp_path)
    begun.read_text()  # which waits for the import
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors


def test_ctrl_c_keeps_the_last_round_and_leaves_no_process_and_json_alone(write_job, tmp_path):
    begun = tmp_path / "begun"
    os.mkfifo(begun)
    job = write_job(WAITS_IN_ROUND_2.format(begun=str(begun)))
    (job.parent / "prints.py").write_text(PRINTS)
    process = started("simulate", job, *JSON, "local", cwd=tmp_path)
    begun.read_text()  # which waits for the second round
    processes = psutil.Process(process.pid).children(recursive=True)
    events = map(json.loads, (tmp_path / "local" / "events.jsonl").read_text().splitlines())
    pids = {event["pid"] for event in events if event["kind"] == "process_ready"}
    assert len(pids) == 3
    assert pids <= {each.pid for each in processes}
    # A run that is killed now would have said already what it ran on.
    assert json.loads((tmp_path / "local" / "versions.json").read_text())["flstream"] == __version__

    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "")
    summary = json.loads(out)
    assert summary == json.loads((tmp_path / "local" / "summary.json").read_text())
    assert (summary["status"], summary["rounds_completed"]) == ("stopped", 1)
    log = (tmp_path / "local" / "tracker.log").read_text()
    assert {*log.splitlines()} == {"printed", "echoed", "complained", "closed"}
    assert (tmp_path / "local" / "checkpoints" / "round-0001.safetensors").is_file()
    # A process is compared by its pid and its start, so another one of that pid is no false alarm.
    _, living = psutil.wait_procs(processes, timeout=10)
    assert living == []


@first_and_nightly("least", [2, 1])
def test_a_long_exception_is_shown_in_part_and_is_whole_in_the_log(
    flstream_here, write_job, tmp_path, least
):
    long = "raise ValueError('begin ' + 'x' * 5000 + ' end')"
    job = write_job(f"if flare.get_site_name() == 'site-2': {long}")
    words = ["--run-dir", "run", "--set", f"clients.min_updates={least}"]
    done = flstream_here("simulate", job, *words)
    assert done.returncode == least - 1
    part = r"site-2(:| failed:) client\.py, line \d+ raised ValueError: begin x+ \[\.\.\.\] x+ end"
    assert re.search(part, done.stdout)
    if least == 2:
        assert re.search(part, done.stderr)
        assert "sites/site-2/log.txt" in done.stderr
        assert "failed after 0 rounds" in done.stdout
    assert max(map(len, (done.stdout + done.stderr).splitlines())) < 600
    assert "begin " + "x" * 5000 + " end" in (tmp_path / "run/sites/site-2/log.txt").read_text()


def test_a_program_and_its_own_words_are_one_command(flstream_here, refused, tmp_path):
    (tmp_path / "program.py").write_text("import sys\nprint(sys.argv[1:])\n")
    done = flstream_here("simulate", tmp_path / "program.py", "-n", "2", "--", "--rounds", "3")
    assert done.returncode == 2
    assert done.stdout.splitlines()[1] == "['--rounds', '3']"
    assert "program.py has started no run" in done.stderr
    assert "only a Python program has arguments of its own" in refused(
        "simulate", tmp_path / "job.conf", "--", "--rounds", "3"
    )
