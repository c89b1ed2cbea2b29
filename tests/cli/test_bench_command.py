"""``flstream bench`` as a subprocess."""

import json
import subprocess
import sys

import pytest

from flstream.bench.compare import predict_bytes


def bench(*arguments, folder):
    return subprocess.run(
        [sys.executable, "-m", "flstream", "bench", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_both_modes_are_measured_and_nothing_is_left_behind(tmp_path):
    size = 32 << 20
    done = bench("--model-size", str(size), "--repeat", "1", "--json", "-", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    results = {each["mode"]: each["median"] for each in json.loads(done.stdout)["results"]}
    assert set(results) == {"pull", "native"}
    # Native holds an update of each of the two clients whole; pull holds chunks of them.
    assert results["native"]["server_peak_rss"] > 2 * size
    assert results["pull"]["server_peak_rss"] < size
    assert results["native"]["client_peak_rss"] > 2 * size > results["pull"]["client_peak_rss"]
    assert list(tmp_path.rglob("*.safetensors")) == []


def test_a_mode_that_does_not_fit_is_shown_but_not_run(tmp_path):
    done = bench("--model-size", "100TB", "--repeat", "1", "--json", "-", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    for result in json.loads(done.stdout)["results"]:
        assert not result["ran"]
        assert result["predicted_bytes"] > 100e12


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--model-size", "much"], "--model-size much"),
        (["--model-size", "3"], "multiple of 4"),
        (["--model-size", "4MB", "--modes", "pull,warp"], "warp"),
        (["--model-size", "4MB", "--chunk-size", "100"], "multiple of 16"),
        (["--model-size", "8", "--tensors", "3"], "--tensors 3"),
        ([], "--model-size"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_a_sentence(arguments, word, tmp_path):
    done = bench(*arguments, folder=tmp_path)
    assert done.returncode == 2
    assert word in done.stderr
    assert "Traceback" not in done.stderr


def test_native_needs_more_than_pull_with_every_client():
    for clients in (1, 4, 16):
        assert predict_bytes("native", 1 << 30, clients) > 2 * predict_bytes("pull", 1 << 30, 1)
