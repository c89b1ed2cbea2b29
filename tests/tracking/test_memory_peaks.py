"""Peaks of memory of a round, also where samples of nodes come in batches."""

import json

from flstream.tracking.memory_peaks import MemoryPeaks


def test_the_total_is_the_sum_of_each_nodes_highest_tick(tmp_path):
    # A second of a node's samples comes at once, between those of this machine.
    samples = [
        {"time": 1.0, "process": "server", "rss": 5, "uss": 5, "pss": 5},
        {"time": 1.1, "process": "server", "rss": 7},
        *(
            {"time": time, "process": site, "rss": rss, "uss": rss, "pss": rss, "node": "a"}
            for time, rss in ((1.0, 10), (1.1, 30), (1.2, 20))
            for site in ("site-1", "site-2")
        ),
        {"time": 1.2, "process": "site-3", "rss": 100, "uss": 100, "pss": 100, "node": "b"},
        {"time": 1.3, "process": "server", "rss": 6},
    ]
    path = tmp_path / "memory.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in samples))
    peaks = MemoryPeaks(path)
    peaks.end_round(1, 2.0)
    (found,) = peaks.take(is_over=True)
    assert found.total == 7 + (30 + 30) + 100
    assert found.rss == {"server": 7, "site-1": 30, "site-2": 30, "site-3": 100}
