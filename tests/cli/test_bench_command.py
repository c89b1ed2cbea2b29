"""``flstream bench`` as a subprocess."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from cli_support import environment

from flstream.cli.bench import _plan, bench
from flstream.errors import UsageError


def test_a_mode_that_does_not_fit_is_shown_but_not_run(flstream):
    done = flstream("bench", "--model-size", "100TB", "--repeat", "1", "--json", "-")
    assert done.returncode == 0, done.stderr
    for result in json.loads(done.stdout)["results"]:
        assert not result["ran"]
        assert result["median"] is None
        if result["mode"] == "file":
            assert result["predicted"]["disk"] > 200e12
        else:
            assert result["predicted_bytes"] > 100e12


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_size": "much"}, "--model-size much"),
        ({"model_size": "3"}, "multiple of 4"),
        ({"modes": "pull,warp"}, "no mode 'warp'; known are pull, push, native, map, file"),
        ({"modes": ","}, "no mode is named"),
        ({"chunk_size": "100"}, "multiple of 16"),
        ({"chunk_size": "2MiB,,1MiB"}, "--chunk-size"),
        ({"model_size": "8", "tensors": 3}, "--tensors 3"),
        ({"plot": Path("out.xyz")}, "must end in one of .png"),
        ({"plot": Path("absent/out.png")}, "--plot absent/out.png: cannot be written"),
        ({"json": "absent/out"}, "--json absent/out: cannot be written"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_is(
    changes, words, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    given = {
        "model_size": "4MB",
        "clients": 2,
        "modes": "pull",
        "chunk_size": "2MiB",
        "tensors": None,
        "repeat": 1,
        "json": None,
        "plot": None,
    }
    with pytest.raises(UsageError, match=re.escape(words)):
        bench(**given | changes)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("clients", "repeat", "expected"), [(2, None, 3), (4, None, 1), (4, 2, 2)])
def test_what_takes_minutes_is_run_once_unless_it_is_told_otherwise(clients, repeat, expected):
    assert _plan("5GB", clients, "pull", "2MiB", None, repeat).repeat == expected


@pytest.mark.parametrize("words", [["--model-size", "4MB", "--json", "absent/out"], []])
def test_a_refusal_is_a_sentence_and_exit_status_2(words, flstream):
    done = flstream("bench", *words)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert ("--json" if words else "--model-size") in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("at", "number"),
    [("what this machine can do", signal.SIGTERM), ("[1/", signal.SIGINT)],
)
def test_who_stops_it_finds_nothing_left(at, number, tmp_path):
    words = ["bench", "--model-size", "256MiB", "--plot", "out.png", "--json", "out.json"]
    with subprocess.Popen(
        [sys.executable, "-m", "flstream", *words],
        cwd=tmp_path,
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        for line in process.stderr:
            if line.startswith(at):
                break
        process.send_signal(number)
        children = psutil.Process(process.pid).children(recursive=True)
        error = process.stderr.read()
        assert process.wait(60) == 130
    assert "stopped" in error
    assert "Traceback" not in error
    assert psutil.wait_procs(children, timeout=10)[1] == []
    assert list(tmp_path.iterdir()) == []
