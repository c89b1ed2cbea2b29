"""What topk and ternary leave out of an update is sent with later ones, and nothing is lost."""

import pytest
import torch
from nightly_cases import first_and_nightly

from flstream.codecs.error_feedback import encode_with_feedback
from flstream.errors import CodecError
from flstream.model.checkpoint import FileSource, unnamed_file
from flstream.model.layout import Layout
from flstream.model.memory import MemoryBody
from flstream.model.source import Scratch, views_of
from tests.codecs.lossy_cases import lossy, model
from tests.support import assert_same_tensors, peak_of, tensors_of


def encoded(folder, codec, update, before=None, number=0):
    """The encoded form of an update, whose residual is in a file of that number."""
    after = folder / f"residual-{number}"
    return encode_with_feedback(update, codec, folder / "sent", before=before, after=after)


def rounds(folder, name, updates, *require_lossless):
    """What a server decodes of each update, and the last residual."""
    codec, before = lossy(name, *require_lossless), None
    decoded = []
    for number, update in enumerate(updates):
        body = MemoryBody.of(update)
        sent = encoded(folder, codec, body, before, number)
        assert sent.layout == codec.encoded(body.layout)
        decoded.append(tensors_of(codec.decode(sent, body.layout)))
        before = FileSource(folder / f"residual-{number}")
    return decoded, tensors_of(before)


@pytest.mark.parametrize("name", ["topk", "topk, a third", "ternary", "int8"])
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
    _, residual = rounds(tmp_path, "topk", [{"w": torch.zeros(1001)}])
    update, before = (MemoryBody.of(each) for each in ({"w": torch.zeros(1000)}, residual))
    (folder := tmp_path / "new").mkdir()
    with pytest.raises(CodecError, match=r"than this update: tensor 'w' has shape \[1001\]"):
        encoded(folder, lossy("topk"), update, before)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("name", ["topk", "cast bf16"])
def test_an_update_that_is_not_finite_leaves_no_file(tmp_path, name):
    wrong = torch.zeros(70_000)
    wrong[66_000] = float("nan")
    with pytest.raises(CodecError, match="'w' has nan as element 66000"):
        encoded(tmp_path, lossy(name), MemoryBody.of({"w": wrong}))
    assert list(tmp_path.iterdir()) == []


@first_and_nightly("name", ["topk", "ternary", "int8", "int4", "cast bf16"], brief=2)
def test_memory_does_not_grow_with_the_model(tmp_path, name):
    scratch = Scratch()

    def there_and_back(body):
        encoded(tmp_path, lossy(name), body)
        sent = encoded(tmp_path, lossy(name), body, FileSource(tmp_path / "residual-0"), 1)
        decoded = lossy(name).decode(sent, body.layout)
        for start, stop in decoded.layout.ranges(1 << 20):
            views_of(decoded, start, stop, scratch)

    large, small = (
        unnamed_file(Layout.of([("w", "F32", (size,))]), tmp_path) for size in (4 << 20, 1 << 20)
    )
    assert peak_of(there_and_back, large) < peak_of(there_and_back, small) + (2 << 20)
