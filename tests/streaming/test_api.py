"""The API: all or some tensors of an offer, or of all that is on offer, and any file."""

import threading
from collections import OrderedDict
from dataclasses import replace

import pytest
import torch
from harness import QUICK
from support import assert_same_tensors, tensor

from flstream.errors import AbortedError, LayoutError, RefusedError
from flstream.model.layout import Layout
from flstream.streaming import Signal, TensorSpec, add_blob, add_file, add_tensors, wire
from flstream.streaming.api import download_blob, download_file, download_specs, download_tensors
from flstream.streaming.settings import Limits, StreamSettings

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
@pytest.mark.parametrize("size", [4096, 0])
def test_what_was_selected_arrives_and_nothing_else_is_sent(harness, tmp_path, names, where, size):
    ref = add_tensors(harness.service, MODEL, ["site-1", "other"])
    if where == "file":
        path = tmp_path / "m.safetensors"
        assert download_file(harness.receiver("other"), ref.id, path)[0].ok
        ref = add_file(harness.service, path, ["site-1", "other"])
    status, got = download_tensors(harness.receiver(), ref.id, select=names, max_chunk_size=size)
    with pytest.raises(TypeError, match="neither true nor false"):
        bool(status)  # it is the opposite in NVFlare
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
        (["z.wight"], "tensor 'z.wight' is not among what server offers; did you mean 'z.weight'"),
        (["a.half", "a.half"], "tensor 'a.half' is selected twice"),
        ([], "no tensor is selected"),
    ],
)
def test_a_selection_that_cannot_be_had_is_refused_with_the_name(harness, names, sentence):
    ref = add_tensors(harness.service, MODEL, ["site-1"])
    with pytest.raises(RefusedError, match=sentence):
        download_tensors(harness.receiver(), ref.id, select=names)
    assert "site-1: " in ref.wait(10).reason


def test_tensors_are_looked_up_by_name_round_and_tags_over_all_that_is_on_offer(harness):
    service = harness.service
    old = add_tensors(service, {"w": torch.zeros(3)}, ["site-1"], round=2, tags=["trained"])
    new = add_tensors(service, MODEL, ["site-1"], round=3, tags=("trained", "site-2"))
    add_tensors(service, {"loss": torch.ones(1).numpy()}, ["site-1"], round=3, tags=["metric"])
    # Tensors of a report are others than those of a model.
    add_tensors(service, {"w": torch.ones(3)}, ["site-1"], round=2, tags=["trained"], report=True)
    specs = [
        TensorSpec("loss", 3, tags=("metric",)),
        TensorSpec("b.weight", 3, tags=("site-2", "trained")),
        TensorSpec("w", 2, tags=("trained",)),
    ]
    for _ in range(3):  # what they were looked up in stays on offer
        status, got = download_specs(harness.receiver(), specs)
        assert list(got) == ["loss", "b.weight", "w"]
        assert torch.equal(got["b.weight"], MODEL["b.weight"])
        assert status.cost.requests == 3  # one for each of the refs
    assert old.outcome is None
    assert not got["w"].any()
    report = TensorSpec("w", 2, tags=("trained",), report=True)
    assert download_specs(harness.receiver(), [report])[1]["w"].all()
    for spec, sentence in [
        (TensorSpec("w", 3, tags=("trained",)), "no tensor 'w' of round 3 and the tags trained"),
        (TensorSpec("b.weight", 3, tags=("trained",)), "no tensor 'b.weight' of round 3"),
        (TensorSpec("w"), "no tensor 'w' of round 0 is on offer by server"),
    ]:
        with pytest.raises(RefusedError, match=sentence):
            download_specs(harness.receiver(), [spec])
    with pytest.raises(ValueError, match="two specs have the same name"):
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
    assert ref.source.layout == Layout.of([("blob", "U8", (len(content),))])
    path = tmp_path / "copy"
    status, copied = download_blob(
        harness.receiver(), ref.id, str(path), settings=QUICK, resume=resume
    )
    assert (status.ok, copied) == (True, path)
    assert path.read_bytes() == content
    assert ref.wait(10).ok


def test_more_tensors_and_ranges_than_a_request_has_are_fetched_by_several(harness, monkeypatch):
    specs = [TensorSpec(f"t{number}", number) for number in range(wire.MAX_SPECS + 1)]
    for number, spec in enumerate(specs):
        tensors = {spec.tensor_name: torch.tensor(number)}
        add_tensors(harness.service, tensors, ["site-1"], round=number)
    signal, receiver = Signal(), harness.receiver()
    _, got = download_specs(receiver, specs, abort_signal=signal)
    assert [int(value) for value in got.values()] == list(range(wire.MAX_SPECS + 1))
    signal.set()
    with pytest.raises(AbortedError):
        download_specs(receiver, specs, abort_signal=signal)
    signal.close()
    monkeypatch.setattr(wire, "MAX_RANGES", 300)
    names = [f"{number:05}" for number in range(1_000)]
    model = {name: torch.tensor(number) for number, name in enumerate(names)}
    ref = add_tensors(harness.service, model, ["site-1"])
    chosen = names[::2]
    status, got = download_tensors(harness.receiver(), ref.id, select=chosen)
    assert (list(got), status.cost.requests) == (chosen, 2)
    assert [int(value) for value in got.values()] == list(range(0, 1_000, 2))


def test_progress_only_goes_up_and_tensors_are_told_of_once_when_whole(harness):
    ref = add_tensors(harness.service, MODEL, ["site-1"])
    progress, told = [], {}

    def on_tensors(tensors):
        assert not told.keys() & tensors.keys()
        assert all(torch.equal(tensors[name], MODEL[name]) for name in tensors)
        told.update(tensors)

    status, _ = download_tensors(
        harness.receiver(),
        ref.token,
        settings=replace(QUICK, chunk_size=1024),
        on_progress=lambda *n: progress.append(n),
        on_tensors=on_tensors,
    )
    assert status.ok
    assert told.keys() == MODEL.keys()
    done = [first for first, _ in progress]
    assert done == sorted(set(done))
    assert progress[-1] == (status.cost.bytes, status.cost.bytes)


def test_a_callback_that_raises_harms_nobody(harness, capfd):
    def fail(ref):
        raise RuntimeError("in the callback")

    receiver = harness.receiver()
    for on_settled in (fail, None):
        ref = add_tensors(harness.service, MODEL, ["site-1"], on_settled=on_settled)
        assert download_tensors(receiver, ref.token)[0].ok
        assert ref.wait(10).ok
    harness.service.close()  # which waits for callbacks
    assert "in the callback" in capfd.readouterr().err


def offers(tensors=MODEL, receivers=("site-1", "site-2", "site-3"), **options):
    return lambda harness: add_tensors(harness.service, tensors, receivers, **options)


def waits(*how):
    return lambda harness: offers()(harness).wait(*how)


def downloads(**options):
    return lambda harness: download_tensors(harness.receiver(), bytes(16), **options)


def finds(spec):
    return lambda harness: download_specs(harness.receiver(), [spec])


def sets(**fields):
    return lambda harness: StreamSettings(**fields)


NO_SPEC = r"is no spec; give TensorSpec\(name, round, tags=\(text,\)\)"


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (offers(receivers="site-1"), "receivers is the text 'site-1'; give a list"),
        (offers(receivers=[None]), "receivers are .None.; give their names"),
        (offers(on_settled=3), "on_settled is 3; give a function"),
        (offers(round="7"), "round is '7'; give a whole number"),
        (offers(tags="agg"), "tags are 'agg'; give a list of texts"),
        (offers(order=["a", "a"]), "order has 2 names that are not the 5 of the body"),
        (offers(max_chunk_size=8), "max_chunk_size is 8"),
        (offers(max_chunk_size=1.0), "max_chunk_size is 1.0"),
        (offers(stall_timeout=10**400), "stall_timeout is 1"),
        (offers(stall_timuot=5), "no option 'stall_timuot'; did you mean 'stall_timeout'"),
        (offers(torch.nn.Linear(2, 2)), "is a Linear; give tensors by name, such as the state_d"),
        (downloads(settings=3), "settings is 3; give StreamSettings"),
        (downloads(abort_signal=threading.Event()), r"give a flstream\.streaming\.Signal\(\)"),
        (downloads(abort_singal=None), "no option 'abort_singal'; did you mean 'abort_signal'"),
        (downloads(select=[3]), r"select is \[3\]; give a list of names"),
        (finds(TensorSpec("a", 7, tags="agg")), NO_SPEC),
        (finds(TensorSpec("a", None)), NO_SPEC),
        (finds(TensorSpec("a", "7")), NO_SPEC),
        (finds(TensorSpec("a", 10**30)), NO_SPEC),
        (finds(TensorSpec(3)), NO_SPEC),
        (finds("a"), NO_SPEC),
        (sets(chunk_size=100), "chunk_size is 100; give a multiple of 16"),
        (sets(chunk_size=1 << 31), "up to 1073741824 bytes"),
        (sets(chunk_size=4096.0), "chunk_size is 4096.0; give a multiple of 16"),
        (sets(request_timeout=0), "request_timeout is 0; give seconds above 0"),
        (sets(request_timeout=float("nan")), "request_timeout is nan"),
        (sets(request_timeout="5"), "request_timeout is '5'; give seconds above 0"),
        (sets(request_timeout=10**400), "give seconds above 0"),
        (sets(ping_after=-1.0), "ping_after is -1.0"),
        *((waits(timeout), "a timeout of") for timeout in (float("nan"), "x")),
        *(
            (waits(0, quorum), f"a quorum of {quorum!r} cannot be had of 3 receivers")
            for quorum in (0, -1, 4, True, 1.0, "2")
        ),
        *(
            (lambda _, most=most: Limits(most), f"scratch_bytes is {most!r}; give a whole number")
            for most in (None, "x", 0, -1, 1.5, True)
        ),
    ],
)
def test_what_makes_no_sense_is_refused_at_once(harness, call, sentence):
    with pytest.raises((ValueError, TypeError, LayoutError), match=sentence):
        call(harness)
