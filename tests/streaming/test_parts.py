"""Parts: some tensors of an offer, or of all that is on offer, and nothing else is sent."""

import threading
from collections import OrderedDict

import pytest
import torch
from asking import Asker, ask, refusal
from harness import QUICK
from support import assert_same_tensors, tensor

from flstream.errors import LayoutError, RefusedError
from flstream.streaming import (
    TensorSpec,
    add_arrays,
    add_blob,
    add_file,
    add_tensors,
    download_blob,
    download_file,
    download_specs,
    download_tensors,
)
from flstream.streaming.wire import Close, Closed, Open, Opened, Part

MODEL = OrderedDict(
    (name, tensor(code, shape, seed=len(name)))
    for name, code, shape in [
        ("z.weight", "F32", (100, 100)),
        ("a.half", "F16", (333,)),
        ("m.flag", "BOOL", (7,)),
        ("b.weight", "F32", (50, 3)),
        ("none", "I64", (0, 4)),
    ]
)


@pytest.mark.parametrize("names", [["b.weight"], ["m.flag", "z.weight", "none"], list(MODEL)])
@pytest.mark.parametrize("where", ["memory", "file"])
def test_what_was_selected_arrives_and_nothing_else_is_sent(harness, tmp_path, names, where):
    ref = add_tensors(harness.service, MODEL, ["site-1", "other"])
    if where == "file":
        path = tmp_path / "m.safetensors"
        assert download_file(harness.receiver("other"), ref.id, path)[0].ok
        ref = add_file(harness.service, path, ["site-1", "other"])
    status, got = download_tensors(harness.receiver(), ref.id, select=names, settings=QUICK)
    assert list(got) == names
    assert_same_tensors(got, {name: MODEL[name] for name in names})
    assert status.cost.bytes == sum(MODEL[name].nbytes for name in names)
    assert ref.deliveries["site-1"].bytes == status.cost.bytes
    # It is done with the ref, as with the whole of it.
    assert ref.outcome is None
    assert download_tensors(harness.receiver("other"), ref.id)[0].ok
    assert ref.wait(10).ok


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        (["z.wight"], "there is no tensor 'z.wight'; did you mean 'z.weight'?"),
        (["a.half", "a.half"], "tensor 'a.half' is selected twice"),
        ([], "no tensor is selected"),
    ],
)
def test_a_selection_that_cannot_be_had_is_refused_with_the_name(harness, names, sentence):
    ref = add_tensors(harness.service, MODEL, ["site-1"])
    with pytest.raises(RefusedError, match=sentence):
        download_tensors(harness.receiver(), ref.id, select=names)
    # The ref is still on offer.
    assert download_tensors(harness.receiver(), ref.id)[0].ok
    assert ref.wait(10).ok


def test_parts_are_for_those_the_whole_is_for(harness):
    ref = add_tensors(harness.service, MODEL, ["site-1"], round=1)
    stranger = harness.receiver("stranger")
    for refused in (
        lambda: download_tensors(stranger, ref.id, select=["a.half"]),
        lambda: download_specs(stranger, [TensorSpec("a.half", 1)]),
    ):
        with pytest.raises(RefusedError, match="on offer"):
            refused()
    assert ref.outcome is None


def test_the_end_of_the_whole_is_that_of_its_parts(harness):
    ref = add_tensors(harness.service, MODEL, ["site-1"])
    asker, token = Asker(harness.channel()), bytes(range(16))
    part = Part(ref.token, ["a.half"])
    assert isinstance(ask(asker, Open(token, 1, part=part)), Opened)
    # Asked again, as over a new connection, it is the same part.
    assert isinstance(ask(asker, Open(token, 2, part=part)), Opened)
    ref.abort("no more")
    assert "not on offer" in refusal(asker, Open(token, 3))
    assert "not on offer" in refusal(asker, Open(token, 4, part=part))
    # A token that is in use stands for nothing else.
    ref = add_tensors(harness.service, MODEL, ["site-1", "site-2"])
    assert isinstance(ask(asker, Open(ref.token, 5, part=Part(ref.token, ["a.half"]))), Opened)
    assert ask(asker, Close(ref.token, 6, True, "")) == Closed(6)
    assert ref.deliveries["site-1"].has_it


def test_tensors_are_looked_up_by_name_round_and_tags_over_all_that_is_on_offer(harness):
    service = harness.service
    old = add_tensors(service, {"w": torch.zeros(3)}, ["site-1"], round=2, tags=["trained"])
    new = add_tensors(service, MODEL, ["site-1"], round=3, tags=("trained", "site-2"))
    add_arrays(service, {"loss": torch.ones(1).numpy()}, ["site-1"], round=3, tags=["metric"])
    specs = [
        TensorSpec("loss", 3, ("metric",)),
        TensorSpec("b.weight", 3, ("site-2", "trained")),
        TensorSpec("w", 2, ("trained",)),
    ]
    for _ in range(3):  # what they were looked up in stays on offer
        status, got = download_specs(harness.receiver(), specs)
        assert list(got) == ["loss", "b.weight", "w"]
        assert torch.equal(got["b.weight"], MODEL["b.weight"])
        assert status.cost.requests == 1
    assert old.outcome is None
    for spec, sentence in [
        (TensorSpec("w", 3, ("trained",)), "no tensor 'w' of round 3 and the tags trained is on"),
        (TensorSpec("b.weight", 3, ("trained",)), "no tensor 'b.weight' of round 3"),
        (TensorSpec("w"), "no tensor 'w' of round 0 is on offer here"),
    ]:
        with pytest.raises(RefusedError, match=sentence):
            download_specs(harness.receiver(), [spec])
    with pytest.raises(RefusedError, match="tensor 'w' is selected twice"):
        download_specs(harness.receiver(), [specs[2]] * 2)
    old.abort("round 2 is over")
    with pytest.raises(RefusedError, match="no tensor 'w' of round 2"):
        download_specs(harness.receiver(), specs)
    assert download_tensors(harness.receiver(), new.id)[0].ok


@pytest.mark.parametrize("size", [16, 1024])
def test_chunks_are_no_longer_than_the_sender_says(harness, size):
    receiver, watch = harness.watched()
    ref = add_tensors(harness.service, MODEL, ["site-1"], max_chunk_size=size)
    status, got = download_tensors(receiver, ref.id)
    assert status.ok
    assert_same_tensors(got, MODEL)
    assert max(frame.length for frame in watch.frames) == size
    again = add_tensors(harness.service, MODEL, ["site-1"], max_chunk_size=size)
    with pytest.raises(RefusedError, match=f"chunks of more than {size} bytes are not sent"):
        download_tensors(receiver, again.id, max_chunk_size=0)


@pytest.mark.parametrize("content", [b"", b"x", bytes(range(256)) * 1000])
@pytest.mark.parametrize("resume", [False, True])
def test_any_file_travels_as_it_is(harness, tmp_path, content, resume):
    (tmp_path / "data.bin").write_bytes(content)
    ref = add_blob(harness.service, str(tmp_path / "data.bin"), ["site-1"])
    path = tmp_path / "copy"
    status, copied = download_blob(
        harness.receiver(), ref.id, str(path), settings=QUICK, resume=resume
    )
    assert (status.ok, copied) == (True, path)
    assert path.read_bytes() == content
    assert ref.wait(10).ok


@pytest.mark.parametrize(
    "spec",
    [
        TensorSpec("a", 7, "agg"),
        TensorSpec("a", None),
        TensorSpec("a", "7"),
        TensorSpec("a", 10**30),
        TensorSpec(3),
        "a",
    ],
)
def test_what_is_no_spec_is_refused_before_it_is_sent(harness, spec):
    with pytest.raises(ValueError, match=r"is no spec; give TensorSpec\(name, round, tags\)"):
        download_specs(harness.receiver(), [spec])


def test_more_names_than_a_request_has_room_for_are_refused_here(harness):
    receiver = harness.receiver()
    ref = add_tensors(harness.service, MODEL, ["site-1"])
    for names, sentence in [
        ([f"{'n' * 110}{number}" for number in range(9_990)], "take more than the 1048576 bytes"),
        ([str(number) for number in range(10_001)], "more than 10000 tensors are selected"),
    ]:
        with pytest.raises(RefusedError, match=sentence):
            download_tensors(receiver, ref.id, select=names)
    assert download_tensors(receiver, ref.id)[0].ok


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"on_settled": 3}, "on_settled is 3; give a function"),
        ({"round": "7"}, "round is '7'; give a whole number"),
        ({"tags": "agg"}, "tags are 'agg'; give a list of texts"),
        ({"order": ["a", "a"]}, "order has 2 names that are not the 5 of the body"),
        ({"max_chunk_size": 8}, "max_chunk_size is 8"),
        ({"max_chunk_size": 1.0}, "max_chunk_size is 1.0"),
        ({"stall_timeout": 10**400}, "stall_timeout is 1"),
        ({"stall_timuot": 5}, "no option 'stall_timuot'; did you mean 'stall_timeout'"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(harness, options, sentence):
    with pytest.raises((ValueError, TypeError), match=sentence):
        add_tensors(harness.service, MODEL, ["site-1"], **options)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"settings": 3}, "settings is 3; give StreamSettings"),
        ({"abort_signal": threading.Event()}, r"give a flstream\.streaming\.Signal\(\)"),
        ({"abort_singal": None}, "no option 'abort_singal'; did you mean 'abort_signal'"),
        ({"select": [3]}, r"select is \[3\]; give a list of names"),
    ],
)
def test_an_option_of_a_download_that_makes_no_sense_is_refused(harness, options, sentence):
    with pytest.raises((ValueError, TypeError), match=sentence):
        download_tensors(harness.receiver(), bytes(16), **options)


def test_a_module_is_not_offered_for_its_state(harness):
    with pytest.raises(LayoutError, match="is a Linear; give tensors by name, such as the state_d"):
        add_tensors(harness.service, torch.nn.Linear(2, 2), ["site-1"])
