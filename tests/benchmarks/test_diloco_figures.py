"""Figures of benchmarks/diloco.py from a journal: shares of time, and rates for them."""

import json
from types import SimpleNamespace

import diloco
import pytest
from diloco import Points, loss_of, utilisation_of
from diloco_figures import SHARES, Plan, Variant, computed_share, rate_for

PLAIN, LATE = Variant("plain", 30), Variant("late", 30, fragments=3, overlap=5)
# 10 Mbit up and 20 Mbit down, in steps of 100 ms.
POINT = {"step": 0.1, "up": 1.25e6, "down": 2.5e6}


def test_a_share_counts_what_travels_and_leaves_out_what_the_overlap_hides():
    assert computed_share(PLAIN, POINT, 10.0) == pytest.approx(3 / (3 + 1 + 2))
    # 10 steps, of which 5 are made while half a second of the way down goes by.
    assert computed_share(LATE, POINT, 10.0) == pytest.approx(1 / (1 + 1 + 1.5))
    assert computed_share(LATE, POINT, 40.0) == pytest.approx(1 / (1 + 0.25))


@pytest.mark.parametrize("variant", [PLAIN, LATE])
@pytest.mark.parametrize("share", SHARES)
def test_a_rate_for_a_share_gives_that_share(variant, share):
    assert computed_share(variant, POINT, rate_for(variant, POINT, share)) == pytest.approx(share)


def event(time, kind, **fields):
    return {"time": time, "kind": kind, **fields}


def test_the_share_measured_is_that_of_the_time_between_two_updates():
    transfer = {"bytes": 400}
    times = {"site-1": (9.0, 12.0, 14.0), "site-2": (9.5, 11.5, 15.5)}
    events = [
        *(
            event(time, "site_update", site=site, metrics={"seconds": seconds})
            for site, each in times.items()
            for time, seconds in zip(each, (0.9, 0.1, 0.2), strict=True)
        ),
        event(10.0, "late_received", site="site-1", bytes=70),
        event(16.0, "round_finished", down=transfer, up=transfer),
    ]
    point = utilisation_of(LATE, SimpleNamespace(events=events))
    assert point["share"] == pytest.approx(2 * 10 * (0.1 + 0.2) / (5 + 6))
    assert point["step"] == pytest.approx(0.4)
    assert (point["up"], point["down"]) == (100, 70)


def test_the_bytes_are_those_of_a_site_without_what_is_sent_to_be_scored():
    down, up = {"bytes": 4000}, {"bytes": 400}
    events = [
        event(1.0, "round_finished", down=down, up=up),  # the initial model
        event(2.0, "evaluated", round=1, metrics={"loss": 2.5}, down={"bytes": 40}),
        event(3.0, "round_finished", down={"bytes": 360}, up=up),
        event(4.0, "evaluated", round=2, metrics={"loss": 2.0}, down={"bytes": 40}),
    ]
    transfer = SimpleNamespace(down=SimpleNamespace(bytes=4440), up=SimpleNamespace(bytes=800))
    run = SimpleNamespace(events=events, summary=SimpleNamespace(transfer=transfer))
    point = loss_of(PLAIN, run)
    assert point["losses"] == [(30, 2.5), (60, 2.0)]
    assert (point["down"], point["up"], point["largest"]) == (1090, 200, 90 + 100)


def test_a_point_is_measured_once_from_the_pretrained_model_of_its_seed(tmp_path, monkeypatch):
    runs = []

    def run(job, folder, *settings, check=None):
        runs.append(settings)
        if check is not None:
            (tmp_path / "global.safetensors").write_bytes(b"weights")
            check(tmp_path)
        return len(runs)

    monkeypatch.setattr(diloco, "run", run)
    monkeypatch.setattr(diloco, "FOLDER", tmp_path / "kept")
    for _ in range(2):
        points = Points(tmp_path / "points.json", tmp_path / "job", Plan(pretrained=9))
        assert points.measure("one", ["seed=1", "rounds=1"], lambda n: {"run": n}) == {"run": 2}
    pretraining, measured = runs
    assert pretraining[0] == "seed=1"
    assert "workflow.args.inner_steps=9" in pretraining
    (initial,) = (tmp_path / "kept").iterdir()
    assert measured == ("seed=1", "rounds=1", f"model.initial={initial}", "checkpoints.keep=1")
    (key,) = json.loads((tmp_path / "points.json").read_text())
    assert key.endswith(" 9 seed=1 rounds=1")
