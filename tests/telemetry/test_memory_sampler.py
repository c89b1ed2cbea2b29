"""The sampler sees every process's peak, and its lines can be read; the machine is described."""

import math
import mmap
import os
import re
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from multiprocessing import get_context

import msgspec

import flstream
from flstream.telemetry import memory
from flstream.telemetry.machine import machine_facts
from flstream.telemetry.memory import MemorySampler, NodeMemory, ProcessMemory, Sample

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


def child():
    command = [sys.executable, "-c", CHILD]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


@contextmanager
def fork():
    """A process that shares all memory with this one."""
    process = get_context("fork").Process(target=signal.pause, daemon=True)
    process.start()
    yield process.pid
    process.kill()
    process.join()


def test_the_peak_of_a_child_is_seen_after_it_gave_the_memory_back_and_ended(tmp_path):
    path = tmp_path / "memory.jsonl"
    with child() as process, MemorySampler(path) as sampler:
        assert process.stdout.readline() == b"idle\n"
        idle = memory.rss_of(process.pid)
        sampler.watch("child", process.pid)
        sampler.note("child", idle_rss=idle)
        sampler.watch("this", os.getpid())
        process.stdin.write(b"go\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"freed\n"
        sampler._reads_at = 0.0
        sampler._tick()
        assert sampler.current_rss()["child"] > 0
        process.communicate(b"end\n")
        for _ in range(2):
            sampler._tick()
        assert "child" not in sampler.current_rss()
        peak = sampler.peaks()["child"]
    assert peak.idle_rss == idle
    # The kernel counts pages in batches for each processor, so its numbers are a little behind.
    assert 60 * MIB <= peak.peak_rss - idle < 80 * MIB
    assert peak.peak_uss > 0
    assert sampler.peak_total_pss > 0
    assert sampler.peaks()["this"].peak_rss >= memory.own_rss() // 2
    samples = [msgspec.json.decode(line, type=Sample) for line in path.read_bytes().splitlines()]
    assert {sample.process for sample in samples} == {"child", "this"}
    assert all(sample.rss > 0 for sample in samples if sample.process == "this")
    assert any(sample.uss for sample in samples if sample.process == "child")


def tick(sampler, *, reads):
    """Tick with or without a reading of USS and PSS, and return the peaks."""
    sampler._reads_at = sampler._may_read_at = 0.0 if reads else math.inf
    sampler._tick()
    return sampler.peak_total_pss, sampler.peaks()["this"].peak_uss


def test_what_a_process_shares_with_one_forked_since_it_was_read_is_not_counted_twice():
    sampler = MemorySampler()
    sampler.watch("this", os.getpid())
    with mmap.mmap(-1, 64 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as block:
        block.write(b"1" * 64 * MIB)
        before, _ = tick(sampler, reads=True)
        with fork() as pid:
            sampler.watch("fork", pid)
            for reads in (False, True):
                assert before <= tick(sampler, reads=reads)[0] < before + 32 * MIB


def test_between_two_readings_growth_counts_but_for_pages_of_files():
    sampler = MemorySampler()
    sampler.watch("this", os.getpid())
    with tempfile.TemporaryFile(dir="/var/tmp") as file:  # on a disk
        file.write(b"1" * 64 * MIB)
        file.flush()
        before = tick(sampler, reads=True)
        pages = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    with pages:
        assert pages[:: mmap.PAGESIZE].count(b"1") == 64 * MIB // mmap.PAGESIZE
        mapped = tick(sampler, reads=False)
    with mmap.mmap(-1, 64 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as block:
        block.write(b"1" * 64 * MIB)
        grown = tick(sampler, reads=False)
    for less, between, more in zip(before, mapped, grown, strict=True):
        assert less <= between < less + 16 * MIB
        assert less + 48 * MIB < more < less + 80 * MIB


def test_what_a_process_says_of_itself_counts_if_it_is_more():
    with child() as process:
        process.communicate(b"go\nend\n")
    with MemorySampler() as sampler:
        sampler.watch("gone", process.pid)  # one that was never there is no error
        sampler.note("site-1", idle_rss=10)
        sampler.note("site-1", peak_rss=500)
        before = sampler.peaks()
        sampler.note("site-1", peak_rss=400)
        assert sampler.peaks() == before
        sampler.note("site-1", peak_rss=700)
    assert (before["site-1"].idle_rss, before["site-1"].peak_rss) == (10, 500)
    assert [peak.peak_rss for peak in sampler.peaks().values()] == [700]
    # A peak over idle is never below nothing.
    for idle, peak, over in ((100, 130, 30), (100, 90, 0), (0, 90, 0)):
        assert ProcessMemory(idle_rss=idle, peak_rss=peak).over_idle == over
    assert MIB < memory.own_rss() <= memory.own_peak_rss() + MIB


def test_others_count_with_a_process_as_long_as_they_live():
    with child() as process, child() as other, MemorySampler() as sampler:
        process.stdout.readline()
        other.stdout.readline()
        sampler.watch("site", process.pid, [other.pid])
        sampler._tick()
        both = sampler.current_rss()["site"]
        assert both > memory.rss_of(process.pid) + memory.rss_of(other.pid) // 2
        assert sampler.peaks()["site"].peak_rss >= both
        other.communicate(b"go\nend\n")
        sampler._tick()
        assert sampler.current_rss()["site"] < both
        process.communicate(b"go\nend\n")
        sampler._tick()
        assert "site" not in sampler.current_rss()


def test_what_nodes_took_together_counts_and_not_what_one_took_that_came_later():
    sampler = MemorySampler()
    local = sampler.peak_total_pss
    sampler.take("one", NodeMemory([Sample(1.0, "site-1", 50)], {}, 100))
    sampler.take("two", NodeMemory([Sample(1.0, "site-2", 60)], {}, 200))
    assert sampler.peak_total_pss - local == 300
    sampler.forget("two")
    # The same machine, which has come again.
    sampler.take("two-2", NodeMemory([Sample(2.0, "site-2", 60)], {}, 150))
    assert sampler.peak_total_pss - local == 300
    assert sampler.nodes == {"one": 100, "two": 200, "two-2": 150}
    assert {name: peak.node for name, peak in sampler.peaks().items()} == {
        "site-1": "one",
        "site-2": "two-2",
    }


def test_the_machine_and_the_versions_are_those_of_this_process():
    facts = machine_facts()
    assert facts["flstream"] == flstream.__version__
    assert facts["Python"] == ".".join(map(str, sys.version_info[:3]))
    assert {"torch", "safetensors"} <= facts.keys()
    assert re.fullmatch(
        rf"{len(os.sched_getaffinity(0))} cores, \d+ GiB of memory", facts["machine"]
    )
    assert facts["system"].startswith("Linux ")
