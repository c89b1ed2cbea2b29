"""The sampler sees every process's peak, and its lines can be read."""

import math
import mmap
import os
import subprocess
import sys

import msgspec
import pytest

from flstream.telemetry import memory
from flstream.telemetry.memory import (
    MemorySampler,
    NodeMemory,
    ProcessMemory,
    Sample,
    own_peak_rss,
    own_rss,
)

MIB = 1 << 20
# Takes 64 MiB, gives them back, and says so; ends when its input does.
CHILD = """
import mmap, sys
print("idle", flush=True)
sys.stdin.readline()
block = mmap.mmap(-1, 64 << 20)
for page in range(0, 64 << 20, 4096):
    block[page] = 1
block.close()
print("freed", flush=True)
sys.stdin.readline()
"""


def child() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )


def test_the_peak_of_a_child_is_seen_after_it_gave_the_memory_back(tmp_path):
    path = tmp_path / "memory.jsonl"
    with child() as process, MemorySampler(path) as sampler:
        assert process.stdout.readline() == b"idle\n"
        idle = own_rss_of(process.pid)
        sampler.watch("child", process.pid)
        sampler.note("child", idle_rss=idle)
        sampler.watch("this", os.getpid())
        process.stdin.write(b"go\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"freed\n"
        sampler._tick()
        peak = sampler.peaks()["child"]
        assert sampler.current_rss()["child"] > 0
        process.communicate(b"end\n")
    assert peak.idle_rss == idle
    # The kernel counts pages in batches for each processor, so its numbers are a little behind.
    assert 60 * MIB <= peak.peak_rss - idle < 80 * MIB
    assert peak.peak_uss > 0
    assert sampler.peak_total_pss > 0
    assert sampler.peaks()["this"].peak_rss >= own_rss() // 2
    samples = [msgspec.json.decode(line, type=Sample) for line in path.read_bytes().splitlines()]
    assert {sample.process for sample in samples} == {"child", "this"}
    assert all(sample.rss > 0 for sample in samples if sample.process == "this")
    times = [sample.time for sample in samples if sample.process == "this"]
    assert times == sorted(times)
    first = next(sample for sample in samples if sample.process == "child")
    assert first.uss is not None


def test_the_total_grows_with_a_process_whose_pss_is_not_read_again():
    sampler = MemorySampler()
    sampler.watch("this", os.getpid())
    sampler._tick()
    before = sampler.peak_total_pss
    watched = sampler._watched["this"]
    watched._next_read = watched._next_growing_read = math.inf
    shared = watched.shared
    with mmap.mmap(-1, 64 * MIB) as block:
        block.write(b"1" * 64 * MIB)
        sampler._tick()
    assert 60 * MIB <= sampler.peak_total_pss - before < 140 * MIB
    assert watched.shared == shared  # which only a reading changes


def test_what_a_process_shares_with_one_forked_since_it_was_read_is_not_counted_twice():
    sampler = MemorySampler()
    with mmap.mmap(-1, 64 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as block:
        block.write(b"1" * 64 * MIB)
        sampler.watch("this", os.getpid())
        sampler._tick()
        before = sampler.peak_total_pss
        sampler._watched["this"]._next_growing_read = math.inf
        read, write = os.pipe()
        if not (pid := os.fork()):
            os.close(write)
            os.read(read, 1)
            os._exit(0)
        sampler.watch("fork", pid)
        sampler._tick()
        rough = sampler.peak_total_pss
        sampler._watched["this"]._next_growing_read = 0.0
        sampler._tick()
        after = sampler.peak_total_pss
        os.close(read)
        os.close(write)
        os.waitpid(pid, 0)
    assert rough > before + 32 * MIB  # but that is all there is to tell until it is read again
    assert before <= after < before + 32 * MIB


def test_what_it_shares_is_read_at_once_when_there_are_twice_as_many_processes():
    sampler = MemorySampler()
    read, write = os.pipe()
    pids = []
    with mmap.mmap(-1, 64 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as block:
        block.write(b"1" * 64 * MIB)
        sampler.watch("this", os.getpid())
        sampler._tick()
        before = sampler.peak_total_pss
        sampler._watched["this"]._next_read = math.inf
        sampler._watched["this"]._next_growing_read = math.inf
        for name in ("one", "two"):
            if not (pid := os.fork()):
                os.close(write)
                os.read(read, 1)
                os._exit(0)
            pids.append(pid)
            sampler.watch(name, pid)
        sampler._tick()
        after = sampler.peak_total_pss
        os.close(read)
        os.close(write)
        for pid in pids:
            os.waitpid(pid, 0)
    assert before <= after < before + 32 * MIB


def test_a_total_of_old_readings_stands_if_there_is_no_better_one_of_as_many_processes():
    sampler = MemorySampler()
    sampler.watch("this", os.getpid())
    sampler._tick()
    sampler._watched["this"]._next_growing_read = math.inf
    with child() as process:
        assert process.stdout.readline() == b"idle\n"
        sampler.watch("child", process.pid)
        sampler._tick()
        both = sampler.peak_total_pss
        process.communicate(b"go\nend\n")
    sampler._watched["this"]._next_growing_read = 0.0
    sampler._tick()
    assert "child" not in sampler.current_rss()
    assert sampler.peak_total_pss == both > own_rss() // 4


class Clock:
    """Time that passes as it is told."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now


class Reading:
    """A process whose USS takes half a second to read."""

    def __init__(self, clock):
        self.clock = clock
        self.rss = 100 * MIB

    def memory_full_info(self):
        self.clock.now += 0.5
        return self


@pytest.mark.parametrize(
    ("processes", "steady", "growing"), [(1, 25.0, 10.0), (4, 100.0, 10.0), (8, 200.0, 20.0)]
)
def test_uss_is_read_as_often_as_its_share_of_the_time_allows_and_more_while_it_grows(
    monkeypatch, processes, steady, growing
):
    clock = Clock()
    monkeypatch.setattr(memory, "time", clock)
    watched = memory._Watched(os.getpid())
    watched.process = Reading(clock)
    assert watched.is_to_be_read(100 * MIB, 0)
    watched.read(processes)
    for rss, pause in [(101 * MIB, steady), (103 * MIB, growing)]:
        clock.now = 0.5 + pause - 0.01
        assert not watched.is_to_be_read(rss, 0)
        clock.now = 0.5 + pause
        assert watched.is_to_be_read(rss, 0)
    # Another process was started since.
    assert watched.is_to_be_read(101 * MIB, 1)


def own_rss_of(pid: int) -> int:
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_process_that_has_ended_keeps_its_peak_and_is_sampled_no_more():
    with child() as process, MemorySampler() as sampler:
        process.stdout.readline()
        sampler.watch("child", process.pid)
        sampler._tick()
        process.communicate(b"go\nend\n")
        sampler._tick()
        sampler._tick()
        assert "child" not in sampler.current_rss()
        assert sampler.peaks()["child"].peak_rss > 0


def test_a_process_that_was_never_there_is_no_error():
    with child() as process:
        process.communicate(b"go\nend\n")
    with MemorySampler() as sampler:
        sampler.watch("gone", process.pid)
    assert sampler.peaks() == {}


def test_what_a_process_says_of_itself_counts_if_it_is_more():
    with MemorySampler() as sampler:
        sampler.note("site-1", idle_rss=10)
        sampler.note("site-1", peak_rss=500)
        sampler.note("site-1", peak_rss=400)
    assert sampler.peaks()["site-1"].idle_rss == 10
    assert sampler.peaks()["site-1"].peak_rss == 500


def test_peaks_are_a_copy_that_does_not_change_later():
    with MemorySampler() as sampler:
        sampler.note("site-1", peak_rss=1)
        before = sampler.peaks()
        sampler.note("site-1", peak_rss=2)
    assert before["site-1"].peak_rss == 1


def test_a_peak_over_idle_is_never_below_nothing():
    assert ProcessMemory(idle_rss=100, peak_rss=130).over_idle == 30
    assert ProcessMemory(idle_rss=100, peak_rss=90).over_idle == 0
    assert ProcessMemory(idle_rss=0, peak_rss=90).over_idle == 0


def test_a_process_knows_its_own_memory():
    assert MIB < own_rss() <= own_peak_rss() + MIB


def test_others_count_with_a_process_as_long_as_they_live():
    with child() as process, child() as other, MemorySampler() as sampler:
        process.stdout.readline()
        other.stdout.readline()
        sampler.watch("site", process.pid, [other.pid])
        sampler._tick()
        both = sampler.current_rss()["site"]
        assert both > own_rss_of(process.pid) + own_rss_of(other.pid) // 2
        assert sampler.peaks()["site"].peak_rss >= both
        other.communicate(b"go\nend\n")
        sampler._tick()
        assert sampler.current_rss()["site"] < both
        process.communicate(b"go\nend\n")
        sampler._tick()
        assert "site" not in sampler.current_rss()


def test_what_nodes_took_together_counts_and_not_what_one_took_that_came_later():
    sampler = MemorySampler()
    here = sampler.peak_total_pss
    sampler.take("one", NodeMemory([Sample(1.0, "site-1", 50)], {}, 100))
    sampler.take("two", NodeMemory([Sample(1.0, "site-2", 60)], {}, 200))
    assert sampler.peak_total_pss - here == 300
    sampler.forget("two")
    # The same machine, whose agent has joined again.
    sampler.take("two-2", NodeMemory([Sample(2.0, "site-2", 60)], {}, 150))
    assert sampler.peak_total_pss - here == 300
    assert sampler.nodes == {"one": 100, "two": 200, "two-2": 150}
    assert {name: each.node for name, each in sampler.peaks().items()} == {
        "site-1": "one",
        "site-2": "two-2",
    }
