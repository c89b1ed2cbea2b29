"""``flstream bench``: its document, what it refuses, and that it leaves nothing."""

import json
import signal

import psutil
import pytest
from cli_support import started


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--model-size", "much"], "--model-size much: must be a size"),
        (["--model-size", "4MB", "--chunk-size", "100"], "multiple of 16"),
        (["--model-size", "4MB", "--json", "absent/out"], "--json absent/out: cannot be written"),
        (["--model-size", "100TB", "--json", "-"], "nothing fits here"),
    ],
)
def test_what_cannot_be_measured_is_refused_and_nothing_is_left(words, error, refused, tmp_path):
    errors = refused("bench", *words)
    assert errors.startswith("error: ")
    assert error in errors
    assert list(tmp_path.iterdir()) == []


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("options", "cases"),
    [
        (["--modes=pull,native,file"], ["pull", "native", "file"]),
        (["--codecs=int8", "--network=100Mbit,2ms"], ["none", "int8"]),
    ],
)
def test_cases_are_run_printed_and_written(tmp_path, options, cases):
    words = ["--model-size", "1MiB", *options, "--repeat", "1"]
    process = started("bench", *words, "--json", "out.json", cwd=tmp_path)
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert [line.partition(",")[0] for line in errors.splitlines()] == cases
    assert max(map(len, out.splitlines())) <= 80
    document = json.loads((tmp_path / "out.json").read_text())
    assert {"flstream", "Python", "torch", "processor"} <= set(document["machine"])
    assert [result["case"] for result in document["results"]] == cases
    for result in document["results"]:
        assert result["runs"] == [result["median"]]
        assert 0 < result["median"]["total_pss"] < result["predicted"]["memory"]
        assert result["median"]["client_over_idle"] > 0
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


@pytest.mark.nightly
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_who_stops_it_finds_nothing_left(number, tmp_path):
    words = ["--model-size", "256MiB", "--json", "out.json"]
    with started("bench", *words, cwd=tmp_path) as process:
        assert "run 1 of 3" in process.stderr.readline()
        process.send_signal(number)
        children = psutil.Process(process.pid).children(recursive=True)
        error = process.stderr.read()
        assert process.wait(60) == 130
    assert "stopped" in error
    assert "Traceback" not in error
    assert psutil.wait_procs(children, timeout=10)[1] == []
    assert list(tmp_path.iterdir()) == []
