"""What topk and ternary leave out of an update is sent with later ones, and nothing is lost."""

import tracemalloc

import numpy as np
import pytest
import torch
from nightly_cases import first_and_nightly

from flstream.codecs.error_feedback import encode_with_feedback, residual_layout
from flstream.errors import CodecError
from flstream.model.checkpoint import FileSource, unnamed_file
from flstream.model.memory import MemoryBody
from tests.codecs.lossy_cases import lossy, model
from tests.support import assert_same_tensors, tensors_of

NAMES = ["topk", "topk, a third", "ternary", "int8"]


def rounds(folder, name, updates, *require_lossless):
    """What a server decodes of each update, and the last residual."""
    codec, before = lossy(name, *require_lossless), None
    decoded = []
    for number, update in enumerate(updates):
        after = folder / f"residual-{number}.safetensors"
        body = MemoryBody.of(update)
        sent = encode_with_feedback(
            body, codec, folder / "sent.safetensors", before=before, after=after
        )
        assert sent.layout == codec.encoded(body.layout)
        decoded.append(tensors_of(codec.decode(sent, body.layout)))
        before = FileSource(after)
    return decoded, tensors_of(before)


@pytest.mark.parametrize("name", NAMES)
def test_all_that_was_decoded_and_the_residual_sum_up_to_the_updates(tmp_path, name):
    updates = [model(seed) for seed in range(4)]
    decoded, residual = rounds(tmp_path, name, updates, "norm")
    for each in ("embed.weight", "lm_head.weight", "half", "short", "double", "odd"):
        due = sum(update[each].double() for update in updates)
        got = sum(found[each].double() for found in decoded) + residual[each].double()
        # Each round rounds a sum to float32 once.
        assert (due - got).abs().max() < (1e-15 if each == "double" else 1e-7)
        assert residual[each].dtype == (torch.float64 if each == "double" else torch.float32)
    for found, update in zip(decoded, updates, strict=True):
        kept = ("norm.weight", "steps", "mask", "complex", "empty")
        assert_same_tensors({n: found[n] for n in kept}, {n: update[n] for n in kept})
    assert "norm.weight" not in residual


def test_what_the_type_cannot_hold_with_the_residual_stays_in_the_residual(tmp_path):
    large = {"w": torch.full((1000,), 60_000.0).half()}
    decoded, residual = rounds(tmp_path, "topk", [large, large], "nothing")
    assert decoded[1]["w"].max() <= 65504
    total = sum(found["w"].double() for found in decoded) + residual["w"].double()
    assert torch.equal(total, torch.full((1000,), 120_000.0).double())


def test_a_residual_of_another_model_is_refused_and_nothing_is_left(tmp_path):
    codec = lossy("topk")
    other = MemoryBody.of({"w": torch.zeros(1001)})
    layout = residual_layout(codec.coded(other.layout)[1])
    before = unnamed_file(layout, tmp_path)
    with pytest.raises(CodecError, match=r"than this update: tensor 'w' has shape \[1001\]"):
        encode_with_feedback(
            MemoryBody.of({"w": torch.zeros(1000)}),
            codec,
            tmp_path / "sent",
            before=before,
            after=tmp_path / "after",
        )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["topk", "cast bf16"])
def test_an_update_that_is_not_finite_leaves_no_file(tmp_path, name):
    wrong = torch.zeros(70_000)
    wrong[66_000] = float("nan")
    with pytest.raises(CodecError, match="'w' has nan as element 66000"):
        encode_with_feedback(
            MemoryBody.of({"w": wrong}),
            lossy(name),
            tmp_path / "sent",
            before=None,
            after=tmp_path / "after",
        )
    assert list(tmp_path.iterdir()) == []


class Made:
    """Random numbers that are made as they are read."""

    def __init__(self, layout):
        self.layout = layout

    def read(self, start, stop, into):
        numbers = np.random.default_rng(start).standard_normal((stop - start) // 4)
        np.copyto(np.frombuffer(into, np.float32), numbers, casting="unsafe")


@first_and_nightly("name", ["topk", "ternary", "int8", "int4", "cast bf16"], brief=2)
def test_memory_does_not_grow_with_the_model(tmp_path, name):
    def peak(size):
        body = Made(MemoryBody.of({"w": np.empty(size, np.float32)}).layout)
        tracemalloc.start()
        before = None
        for number in range(2):
            after = tmp_path / f"after-{number}"
            sent = encode_with_feedback(
                body, lossy(name), tmp_path / "sent", before=before, after=after
            )
            before = FileSource(after)
        decoded = lossy(name).decode(sent, body.layout)
        for start, stop in decoded.layout.ranges(1 << 20):
            views_of(decoded, start, stop, body_scratch)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    from flstream.model.source import Scratch, views_of

    body_scratch = Scratch()
    assert peak(8 << 20) < peak(1 << 20) + (2 << 20)
