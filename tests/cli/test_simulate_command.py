"""`flstream simulate` runs real jobs in real processes, and reports them to people and scripts."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from cli_support import Flstream, WriteJob, environment

from flstream import __version__

WAITS_IN_ROUND_2 = "if model.current_round == 1: import time; time.sleep(600)"


def test_json_is_one_document_and_nothing_else(flstream: Flstream, write_job: WriteJob) -> None:
    done = flstream("simulate", write_job(), "--run-dir", "run", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    summary = json.loads(done.stdout)
    assert summary["status"] == "finished"
    assert summary["rounds_completed"] == 2
    assert summary["transfer"]["down"]["bytes"] == 2 * 2 * summary["model"]["bytes"]


def test_without_a_terminal_a_run_is_plain_lines_of_80_columns_of_tables(
    flstream: Flstream, write_job: WriteJob
) -> None:
    size = "streaming.tensor_download_chunk_size=2MiB"
    settings = ["--set", "rounds=3", "--set", size]
    done = flstream("simulate", write_job().parent, "--run-dir", "run", *settings)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert "\r" not in done.stdout
    lines, tables = done.stdout.split("\n\n", maxsplit=1)
    assert lines.startswith("00:00:00  mini: 3 rounds, 2 sites, pull mode, chunks of 2 MiB\n")
    assert "round 3 of 3: done in" in lines
    assert max(map(len, tables.splitlines())) <= 80
    assert "finished after 3 rounds" in tables
    assert "run/global.safetensors" in tables


@pytest.mark.nightly
def test_quiet_prints_nothing(flstream: Flstream, write_job: WriteJob, tmp_path: Path) -> None:
    done = flstream("simulate", write_job(), "--run-dir", "run", "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "run" / "global.safetensors").is_file()


def test_a_failing_script_exits_1_and_names_the_site_and_the_line(
    flstream: Flstream, write_job: WriteJob
) -> None:
    line = "assert flare.get_site_name() != 'site-2', 'no data here'"
    done = flstream("simulate", write_job(line), "--run-dir", "run")
    assert done.returncode == 1
    assert "site-2: client.py, line 5 raised AssertionError: no data here" in done.stderr
    assert "sites/site-2/log.txt" in done.stderr
    assert "Traceback" not in done.stderr
    assert "failed after 0 rounds" in done.stdout


def test_five_mistakes_in_a_job_file_are_all_named(
    flstream: Flstream, write_job: WriteJob, tmp_path: Path
) -> None:
    path = write_job(
        text="""
        rounds = ten
        clients { count = 2, per_ruond = 1 }
        train { script = clinet.py }
        workflow { type = fedavgg }
        streaming { tensor_download_chunk_size = -2 MiB }
        """
    )
    done = flstream("simulate", path, "--run-dir", "run")
    assert (done.returncode, done.stdout) == (2, "")
    assert "has 5 mistakes" in done.stderr
    assert {line.split(":")[0].strip() for line in done.stderr.splitlines()[1:]} == {
        "rounds",
        "clients.per_ruond",
        "train.script",
        "workflow.type",
        "streaming.tensor_download_chunk_size",
    }
    assert not (tmp_path / "run").exists()


def test_a_run_directory_that_is_in_use_is_left_alone(
    flstream: Flstream, write_job: WriteJob, tmp_path: Path
) -> None:
    path = write_job()
    done = flstream("simulate", path, "--run-dir", "job")
    assert done.returncode == 2
    assert "job is not empty" in done.stderr
    assert {each.name for each in path.parent.iterdir()} == {"job.conf", "model.py", "client.py"}


@pytest.mark.nightly
def test_a_reader_that_goes_away_does_not_end_the_run(write_job: WriteJob, tmp_path: Path) -> None:
    process = _start(write_job(), tmp_path)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=120) == 0
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "finished"


def test_ctrl_c_keeps_the_last_round_and_leaves_no_process(
    write_job: WriteJob, tmp_path: Path
) -> None:
    process = _start(write_job(WAITS_IN_ROUND_2), tmp_path)
    assert process.stdout is not None
    assert process.stderr is not None
    assert any("round 2 of 2" in line for line in process.stdout)
    processes = psutil.Process(process.pid).children(recursive=True)
    events = map(json.loads, (tmp_path / "run" / "events.jsonl").read_text().splitlines())
    pids = {event["pid"] for event in events if event["kind"] == "process_ready"}
    assert len(pids) == 3
    assert pids <= {each.pid for each in processes}
    # A run that is killed now would have said already what it ran on.
    assert json.loads((tmp_path / "run" / "versions.json").read_text())["flstream"] == __version__

    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "")
    assert "stopped after 1 round" in out
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["status"], summary["rounds_completed"]) == ("stopped", 1)
    assert (tmp_path / "run" / "checkpoints" / "round-0001.safetensors").is_file()
    # A process is compared by its pid and its start, so another one of that pid is no false alarm.
    _, living = psutil.wait_procs(processes, timeout=10)
    assert living == []


def _start(job: Path, folder: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "flstream", "simulate", str(job), "--run-dir", "run"],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
