"""Some tensors of some sources as a body: their own bytes, range by range."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import IN_FILES, as_bytes, assert_same_tensors, every_kind, tensor

from flstream.errors import LayoutError
from flstream.model.body import Scratch
from flstream.model.checkpoint import FileSource, write_checkpoint
from flstream.model.copy import copy
from flstream.model.layout import Layout
from flstream.model.memory import MemoryBody
from flstream.model.selected import SelectedSource

KINDS = {**every_kind(IN_FILES), "F32.long": tensor("F32", (501,)), "I16.odd": tensor("I16", (7,))}
TURNED = {name: v.t().contiguous().t() if v.dim() == 2 else v for name, v in KINDS.items()}
NAMES = sorted(KINDS)


class NotedScratch(Scratch):
    """Notes what was taken of it."""

    def __init__(self):
        super().__init__()
        self.taken = []

    def take(self, size):
        self.taken.append(size)
        return super().take(size)


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    path = tmp_path_factory.mktemp("selected") / "m.safetensors"
    write_checkpoint(path, MemoryBody.of(KINDS))
    return [MemoryBody.of(KINDS), MemoryBody.of(TURNED), FileSource(path)]


def received(source):
    into = MemoryBody.allocate(source.layout)
    copy(source, into, step=48)
    return into.tensors


@given(
    chosen=st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 2)), min_size=1, max_size=12),
    data=st.data(),
)
@settings(max_examples=150)
def test_any_range_of_any_selection_is_that_of_the_tensors_themselves(sources, chosen, data):
    wanted = {f"{place}/{name}": (name, place) for name, place in chosen}
    parts = [
        (sources[place], sources[place].layout.by_name[name]._replace(name=given))
        for given, (name, place) in wanted.items()
    ]
    source = SelectedSource(parts)
    due = {given: KINDS[name] for given, (name, _) in wanted.items()}
    assert source.layout == Layout.of(
        (given, name.split(".")[0], tuple(KINDS[name].shape)) for given, (name, _) in wanted.items()
    )
    assert source.lendable == all(place != 2 for _, place in wanted.values())
    whole = b"".join(as_bytes(due[spec.name]) for spec in source.layout.tensors)
    if whole:
        start = data.draw(st.integers(0, len(whole) - 1))
        stop = data.draw(st.integers(start + 1, len(whole)))
        scratch = NotedScratch()
        assert b"".join(source.views(start, stop, scratch)) == whole[start:stop]
        assert len(scratch.taken) <= 1
        assert source.changed(start, stop) is None
    assert_same_tensors(received(source), due)


def test_what_lies_in_memory_is_not_copied():
    tensors = {name: torch.arange(100.0) + len(name) for name in ("a", "bb", "ccc")}
    source = SelectedSource.of(MemoryBody.of(tensors), ["ccc", "a"])
    scratch = NotedScratch()
    views = source.views(0, 800, scratch)
    assert (len(views), scratch.taken) == (2, [])
    tensors["a"][3] = -1
    assert b"".join(views) == as_bytes(tensors["a"]) + as_bytes(tensors["ccc"])
    assert "tensor 'a' was changed" in source.changed(0, 16)
    assert source.changed(400, 800) is None


def test_neighbours_in_a_file_are_read_at_once_and_a_change_of_it_is_told_of(tmp_path):
    tensors = {f"{number:03}": torch.full((5,), float(number)) for number in range(100)}
    write_checkpoint(tmp_path / "m", MemoryBody.of(tensors))
    names = list(tensors)
    source = SelectedSource.of(FileSource(tmp_path / "m"), [*names[:40], *names[60:]])
    assert len(source.views(0, source.layout.nbytes, Scratch())) == 2
    assert source.extent is None
    with (tmp_path / "m").open("r+b") as file:
        file.write(b"junk")
    assert "was changed after it was opened" in source.changed(0, 10)


def test_one_range_of_a_file_has_its_place_there_and_digests_of_its_own(tmp_path):
    write_checkpoint(tmp_path / "m", MemoryBody.of(KINDS))
    file = FileSource(tmp_path / "m", immutable=True)
    source = SelectedSource.of(file, ["F32.long"])
    place = file.layout.by_name["F32.long"].start
    assert source.extent is not None
    extent, theirs = source.extent(16, 32), file.extent(place + 16, place + 32)
    assert (extent.fd, extent.offset, extent.immutable) == (theirs.fd, theirs.offset, True)
    extent.digests.note(16, 32, 5)
    assert source.extent(0, 16).digests.get(16, 32) == 5
    assert theirs.digests.get(16, 32) is None


def test_a_tied_name_selects_the_tensor_under_the_name_that_is_asked_for():
    weight = torch.arange(12.0)
    body = MemoryBody.of({"wte": weight, "head": weight, "bias": torch.ones(3)})
    assert body.layout.aliases == {"wte": "head"}
    alone = SelectedSource.of(body, ["wte", "bias"])
    assert (set(alone.layout.by_name), alone.layout.aliases) == ({"wte", "bias"}, {})
    assert_same_tensors(received(alone), {"wte": weight, "bias": torch.ones(3)})
    both = SelectedSource.of(body, ["wte", "head"])
    assert (both.layout.aliases, both.layout.nbytes) == ({"wte": "head"}, 48)
    assert both.layout.is_canonical
    arrived = received(both)
    assert arrived["wte"] is arrived["head"]


@pytest.mark.parametrize(
    ("names", "sentence"),
    [
        ([], "no tensor is selected; name one at least"),
        (["F32.matrix", "F32.scalar", "F32.matrix"], "'F32.matrix' is selected twice; name it"),
        (["F32.matrx"], r"there is no tensor 'F32.matrx'; did you mean 'F32\.matrix'\?"),
        (["nowhere to be found"], "there is no tensor 'nowhere to be found'; name one of its"),
        (["\n" + "x" * 10_000], r"there is no tensor '\\+nx{900}"),
    ],
)
def test_names_that_cannot_be_selected_are_named(sources, names, sentence):
    with pytest.raises(LayoutError, match=sentence):
        SelectedSource.of(sources[0], names)
