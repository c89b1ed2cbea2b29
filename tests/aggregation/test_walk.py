"""The walk: one pass, a few buffers, and a checkpoint that does not depend on the step."""

import pytest
import safetensors.torch
import torch
from folding import shifted, update
from support import FOLDED, IN_FILES, assert_same_tensors, every_kind

from flstream.aggregation.rules import AggregationRule
from flstream.aggregation.steps import Steps
from flstream.aggregation.walk import fold_updates
from flstream.errors import UpdateRefusedError
from flstream.model.checkpoint import FileSink, FileSource, write_checkpoint
from flstream.model.memory import MemoryBody


def walk(path, base, updates, step=1 << 20):
    seen = []
    with FileSink(path, base.layout) as sink:
        digest = fold_updates(base, updates, AggregationRule(), sink, Steps(step, 16), seen.append)
        sink.finish()
    assert seen == [stop for _, stop in base.layout.ranges(step)]
    return digest


def test_the_walk_writes_the_mean_of_every_tensor_and_tells_its_digest(tmp_path):
    base = MemoryBody.of(every_kind(code for code in FOLDED if code in IN_FILES))
    updates = [
        update(f"site-{seed}", shifted(base.tensors, seed), float(seed)) for seed in (1, 2, 3)
    ]
    digests = {walk(tmp_path / f"{step}", base, updates, step) for step in (16, 48, 512, 1 << 20)}
    assert len(digests) == 1
    loaded = safetensors.torch.load_file(tmp_path / "16")
    assert_same_tensors(safetensors.torch.load_file(tmp_path / "512"), loaded)
    assert write_checkpoint(tmp_path / "copy", FileSource(tmp_path / "16")) in digests
    for name in ("F64.matrix", "F32.scalar"):
        values = {seed: shifted(base.tensors, seed)[name].double() for seed in (1, 2, 3)}
        due = sum(value * weight for weight, value in values.items()) / 6
        assert torch.equal(loaded[name], due.to(loaded[name].dtype))


def test_full_and_difference_updates_mix(tmp_path):
    base = MemoryBody.of({"w": torch.tensor([10.0, 20.0]), "n": torch.tensor([5])})
    write_checkpoint(tmp_path / "base", base)
    full = {"w": torch.tensor([12.0, 20.0]), "n": torch.tensor([7])}
    difference = {"w": torch.tensor([4.0, 4.0]), "n": torch.tensor([2])}
    updates = [update("site-1", full), update("site-2", difference, params_type="DIFF")]
    walk(tmp_path / "next", FileSource(tmp_path / "base"), updates)
    assert_same_tensors(
        safetensors.torch.load_file(tmp_path / "next"),
        {"w": torch.tensor([13.0, 22.0]), "n": torch.tensor([7])},
    )


@pytest.mark.parametrize(
    ("state", "sentence"),
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
def test_an_update_of_another_layout_is_refused_by_site_and_tensor(tmp_path, state, sentence):
    base = MemoryBody.of({"a": torch.zeros(2)})
    updates = [update("site-1", base.tensors), update("site-2", state)]
    with pytest.raises(UpdateRefusedError, match=sentence) as caught:
        walk(tmp_path / "next", base, updates)
    assert caught.value.site == "site-2"
    assert list(tmp_path.iterdir()) == []


def test_a_model_without_bytes_can_be_folded(tmp_path):
    base = MemoryBody.of({"none": torch.zeros(0)})
    digest = walk(tmp_path / "next", base, [update("site-1", base.tensors)])
    assert digest == write_checkpoint(tmp_path / "again", base)


@pytest.mark.parametrize(
    "rule", [AggregationRule(), AggregationRule(clip_norm=1.0), AggregationRule(method="median")]
)
def test_a_walk_ends_with_whatever_is_raised_after_any_range(tmp_path, rule):
    class StoppedError(Exception):
        pass

    def stop(done):
        raise StoppedError

    base = MemoryBody.of({"w": torch.zeros(100)})
    with pytest.raises(StoppedError), FileSink(tmp_path / "next", base.layout) as sink:
        fold_updates(base, [update("s", base.tensors)], rule, sink, Steps(16, 16), stop)
    assert list(tmp_path.iterdir()) == []
