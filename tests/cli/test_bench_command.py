"""``flstream bench`` as a subprocess."""

import json

import pytest

from flstream.bench.compare import predict_bytes


def test_both_modes_are_measured_and_nothing_is_left_behind(flstream, tmp_path):
    size = 32 << 20
    done = flstream("bench", "--model-size", size, "--repeat", "1", "--json", "-")
    assert done.returncode == 0, done.stderr
    results = {each["mode"]: each["median"] for each in json.loads(done.stdout)["results"]}
    assert set(results) == {"pull", "push", "native"}
    # Native holds an update of each of the two clients whole; pull holds chunks of them.
    assert results["native"]["server_peak_rss"] > 2 * size
    assert results["pull"]["server_peak_rss"] < size
    assert results["native"]["client_peak_rss"] > 2 * size > results["pull"]["client_peak_rss"]
    assert list(tmp_path.iterdir()) == []


def test_a_mode_that_does_not_fit_is_shown_but_not_run(flstream):
    done = flstream("bench", "--model-size", "100TB", "--repeat", "1", "--json", "-")
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
def test_what_cannot_be_measured_is_refused_in_a_sentence(arguments, word, flstream):
    done = flstream("bench", *arguments)
    assert done.returncode == 2
    assert word in done.stderr
    assert "Traceback" not in done.stderr


def test_native_needs_more_than_pull_with_every_client():
    for clients in (1, 4, 16):
        native, pull = (predict_bytes(mode, 1 << 30, clients) for mode in ("native", "pull"))
        assert native > 2 * pull
