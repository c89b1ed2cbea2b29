"""Figures of benchmarks/diloco.py from a journal: shares of time, and rates for them."""

import json
from types import SimpleNamespace

import diloco
import pytest
from diloco import Points, utilisation_of
from diloco_figures import SHARES, Variant, computed_share, rate_for

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
    assert (point["up"], point["down"], point["largest"]) == (100, 70, 170)


def test_a_point_is_measured_once(tmp_path, monkeypatch):
    runs = []
    monkeypatch.setattr(diloco, "run", lambda *args: runs.append(args[2:]) or len(runs))
    for _ in range(2):
        points = Points(tmp_path / "points.json", tmp_path / "job")
        assert points.measure("one", ["rounds=1"], lambda run: {"run": run}) == {"run": 1}
    assert runs == [("rounds=1", "checkpoints.keep=1")]
    (key,) = json.loads((tmp_path / "points.json").read_text())
    assert key.endswith(" rounds=1")
