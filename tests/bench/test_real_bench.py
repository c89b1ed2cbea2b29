"""A bench of every mode, as a process, watched by a sampler that stands outside of it."""

import json
import sys

import pytest
from outside import disagreements, watch

pytestmark = pytest.mark.nightly
SIZE = 64 << 20


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    """What it wrote, what the sampler saw of each run, and the folder that it ran in."""
    folder, output = tmp_path_factory.mktemp("bench"), tmp_path_factory.mktemp("output")
    words = ["bench", "--model-size", str(SIZE), "--repeat", "1"]
    words += ["--json", str(output / "out.json"), "--plot", str(output / "out.png")]
    seen = watch([sys.executable, "-m", "flstream", *words], folder, output / "stdout")
    assert (output / "out.png").stat().st_size > 10_000
    assert "Streaming with" in (output / "stdout").read_text()
    return json.loads((output / "out.json").read_text()), seen, folder


def test_peaks_agree_with_an_outside_sampler_within_a_tenth(bench):
    found, seen, _ = bench
    lines = disagreements(found, seen)
    assert len(lines) == 4 * 3
    # PSS is read too seldom to see the peak of a run that lasts for a second.
    assert [line for line in lines if line.startswith("!") and "PSS" not in line] == []


def test_native_holds_models_where_streaming_holds_chunks(bench):
    results = {each["mode"]: each["median"] for each in bench[0]["results"]}
    assert set(results) == {"pull", "push", "native", "file"}
    # Native holds an update of each of the two clients whole; pull holds chunks of them.
    assert results["native"]["server_peak_rss"] > 2 * SIZE
    assert results["pull"]["server_peak_rss"] < SIZE
    assert results["native"]["client_peak_rss"] > 2 * SIZE > results["pull"]["client_peak_rss"]
    # And in a file there is nothing of the model in a client's memory.
    assert results["file"]["client_peak_rss"] < SIZE / 4
    assert results["file"]["requests"] == results["pull"]["requests"]


def test_no_run_takes_more_than_was_predicted(bench):
    for result in bench[0]["results"]:
        (run,) = result["runs"]
        predicted = result["predicted"]
        assert run["total_peak_pss"] < predicted["memory"]
        assert run["server_peak_rss"] < predicted["server"]
        assert run["client_peak_rss"] < predicted["client"]


def test_the_document_says_with_what_and_against_what_it_was_measured(bench):
    found = bench[0]
    assert found["plan"]["model_bytes"] == SIZE
    assert {"flstream", "python", "torch"} <= set(found["machine"]["versions"])
    assert [each["read_size"] for each in found["limits"]["median"]["pipe"]] == [2 << 20]
    for result in found["results"]:
        assert result["runs"] == [result["median"]]
        assert result["ratios"]["exchange_pipe"] > 0


def test_nothing_is_left_behind(bench):
    assert list(bench[2].iterdir()) == []
