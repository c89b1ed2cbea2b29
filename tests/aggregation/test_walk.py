"""The walk: one pass, a few buffers, and a checkpoint that does not depend on the step."""

import tracemalloc

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import assert_same_tensors, every_kind, tensor

from flstream.aggregation.mean import WeightedMean
from flstream.aggregation.walk import Update, fold_updates, plan_steps
from flstream.errors import LayoutError
from flstream.model.checkpoint import FileSink, FileSource, write_checkpoint
from flstream.model.memory import MemoryBody

MIB = 1 << 20


def walk(path, base, updates, step=1 << 20):
    seen = []
    with FileSink(path, base.layout) as sink:
        digest = fold_updates(base, updates, WeightedMean(), sink, step, seen.append)
        sink.finish()
    assert seen == [stop for _, stop in base.layout.ranges(step)]
    return digest


def shifted(tensors, seed):
    return {name: tensor(name.split(".")[0], value.shape, seed) for name, value in tensors.items()}


def test_the_walk_writes_the_mean_of_every_tensor_and_tells_its_digest(tmp_path):
    base = MemoryBody.of(every_kind())
    updates = [
        Update(f"site-{seed}", MemoryBody.of(shifted(base.tensors, seed)), float(seed))
        for seed in (1, 2, 3)
    ]
    digests = {walk(tmp_path / f"{step}", base, updates, step) for step in (16, 48, 512, 1 << 20)}
    assert len(digests) == 1
    loaded = safetensors.torch.load_file(tmp_path / "16")
    assert_same_tensors(safetensors.torch.load_file(tmp_path / "512"), loaded)
    assert write_checkpoint(tmp_path / "copy", FileSource(tmp_path / "16")) in digests
    for name in ("F64.matrix", "F32.scalar"):
        due = sum(u.source.tensors[name].double() * u.weight for u in updates) / 6
        assert torch.equal(loaded[name], due.to(loaded[name].dtype))


def test_full_and_difference_updates_mix(tmp_path):
    base = MemoryBody.of({"w": torch.tensor([10.0, 20.0]), "n": torch.tensor([5])})
    write_checkpoint(tmp_path / "base", base)
    full = MemoryBody.of({"w": torch.tensor([12.0, 20.0]), "n": torch.tensor([7])})
    difference = MemoryBody.of({"w": torch.tensor([4.0, 4.0]), "n": torch.tensor([2])})
    updates = [Update("site-1", full, 1.0), Update("site-2", difference, 1.0, "DIFF")]
    walk(tmp_path / "next", FileSource(tmp_path / "base"), updates)
    assert_same_tensors(
        safetensors.torch.load_file(tmp_path / "next"),
        {"w": torch.tensor([13.0, 22.0]), "n": torch.tensor([7])},
    )


@pytest.mark.parametrize(
    ("update", "sentence"),
    [
        ({"b": torch.zeros(2)}, "site-2 does not fit the model: tensor 'a' is missing"),
        ({"a": torch.zeros(3)}, r"site-2 .*'a' has shape \[3\] instead of \[2\]"),
        ({"a": torch.zeros(2).half()}, "site-2 .*'a' has dtype F16 instead of F32"),
        (
            {"a": torch.zeros(2), "z": torch.zeros(1)},
            "site-2 .*'z' is not part of the model",
        ),
    ],
)
def test_an_update_of_another_layout_is_refused_by_site_and_tensor(tmp_path, update, sentence):
    base = MemoryBody.of({"a": torch.zeros(2)})
    updates = [Update("site-1", base, 1.0), Update("site-2", MemoryBody.of(update), 1.0)]
    with pytest.raises(LayoutError, match=sentence):
        walk(tmp_path / "next", base, updates)
    assert list(tmp_path.iterdir()) == []


def test_a_model_without_bytes_can_be_folded(tmp_path):
    base = MemoryBody.of({"none": torch.zeros(0)})
    digest = walk(tmp_path / "next", base, [Update("site-1", base, 1.0)])
    assert digest == write_checkpoint(tmp_path / "again", base)


chunk_sizes = st.integers(1, 1 << 20).map(lambda count: 16 * count)


@given(st.one_of(st.just(0), chunk_sizes), st.integers(MIB, 1 << 30))
def test_a_step_is_whole_frames_no_longer_than_a_chunk(chunk_size, budget):
    step, frame = plan_steps(chunk_size, budget)
    assert step % frame == 0
    assert frame % 16 == 0
    assert 0 < frame <= (chunk_size or step)


@pytest.mark.parametrize("params_type", ["FULL", "DIFF"])
@pytest.mark.parametrize("code", ["F64", "F32", "F16", "I64", "U64", "I32", "U8", "BOOL"])
@pytest.mark.parametrize("chunk_size", [4096, 2 * MIB])
def test_the_buffers_of_a_walk_stay_within_the_budget(tmp_path, code, params_type, chunk_size):
    budget = 4 * MIB
    names = {"a": tensor(code, (6 * MIB // tensor(code, ()).element_size(),))}
    for name in ("base", "update"):
        write_checkpoint(tmp_path / name, MemoryBody.of(names))
    base, sources = FileSource(tmp_path / "base"), [FileSource(tmp_path / "update")] * 2
    updates = [Update(f"site-{i}", s, 1.0, params_type) for i, s in enumerate(sources)]
    step, _ = plan_steps(chunk_size, budget)
    np.zeros(1) + 1  # whatever NumPy sets up at first use is not the walk's
    tracemalloc.start()
    walk(tmp_path / "next", base, updates, step)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # Blocks in the processor's cache come on top: a handful of 128 KiB, whatever the budget.
    assert peak <= budget + 2 * MIB
