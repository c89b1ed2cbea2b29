"""Layouts: one order for one set of tensors, headers that come back, and none that lie.

Selections of their tensors: patterns of whole names, and parts of nearly equal bytes.
"""

import json
import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import cuts, entries, layouts

from flstream.errors import LayoutError, WorkflowError
from flstream.model.dtypes import BY_CODE
from flstream.model.header import MAX_HEADER_BYTES, header_length, parse_header
from flstream.model.layout import Layout
from flstream.model.order import in_order, order_text
from flstream.model.selection import Part, selected_names


def text_of(layout: Layout, metadata: dict[str, str] | None = None) -> bytes:
    return layout.header(metadata)[8:]


def header(**tensors: object) -> bytes:
    return json.dumps(tensors).encode()


def field(start: int, stop: int, dtype: str = "U8", shape: list[int] | None = None) -> object:
    return {
        "dtype": dtype,
        "shape": [stop - start] if shape is None else shape,
        "data_offsets": [start, stop],
    }


def tied(ties: str) -> bytes:
    return header(__metadata__={"flstream.tied": ties}, a=field(0, 1), b=field(1, 2))


@given(entries())
def test_tensors_fill_the_body_without_a_hole_by_falling_item_size(given_entries):
    layout = Layout.of(given_entries)
    assert layout.nbytes == sum(spec.nbytes for spec in layout.tensors)
    assert {(s.name, s.dtype, s.shape) for s in layout.tensors} == set(given_entries)
    for left, right in pairwise(layout.tensors):
        assert left.stop == right.start
        assert BY_CODE[left.dtype].itemsize >= BY_CODE[right.dtype].itemsize
    assert all(spec.start % BY_CODE[spec.dtype].itemsize == 0 for spec in layout.tensors)
    whole = layout.header()
    assert len(whole) % 64 == 0
    assert int.from_bytes(whole[:8], "little") == len(whole) - 8


@given(entries(), st.randoms(use_true_random=False))
def test_the_layout_does_not_depend_on_the_order_of_the_state_dict(given_entries, shuffler):
    shuffled = list(given_entries)
    shuffler.shuffle(shuffled)
    assert Layout.of(shuffled) == Layout.of(given_entries)
    assert Layout.of(shuffled).fingerprint == Layout.of(given_entries).fingerprint


# Hypothesis tries the strings of our own code, too: the name under which a header has its ties.
NAMES = st.text(st.characters(codec="utf-8")).filter(lambda name: name != "flstream.tied")


@given(layouts(), st.dictionaries(NAMES, st.text(max_size=5)))
def test_a_header_comes_back_as_it_was(layout, metadata):
    text = text_of(layout, metadata)
    read, read_metadata = parse_header(text, "it")
    assert read == layout
    assert read_metadata == metadata
    assert read.is_canonical


@given(entries(), st.data())
def test_a_subset_is_the_layout_of_these_alone(given_entries, data):
    ties = {f"{name}~": name for name, *_ in given_entries}
    layout = Layout.of(given_entries, ties)
    names = {name for name, *_ in given_entries if data.draw(st.booleans())}
    chosen = [entry for entry in given_entries if entry[0] in names]
    kept = {alias: name for alias, name in ties.items() if name in names}
    assert layout.subset(names) == Layout.of(chosen, kept)
    assert layout.subset(names, ()) == Layout.of(chosen)


@given(layouts(), st.data())
def test_ranges_cover_the_body_once_and_in_order(layout, data):
    step = data.draw(cuts(layout.nbytes))
    ranges = list(layout.ranges(step))
    assert [start for start, _ in ranges] == list(range(0, layout.nbytes, step))
    assert all(left[1] == right[0] for left, right in pairwise(ranges))
    assert (ranges[-1][1] if ranges else 0) == layout.nbytes
    for start, stop in ranges:
        due = [s for s in layout.tensors if max(s.start, start) < min(s.stop, stop)]
        assert list(layout.overlapping(start, stop)) == due
        assert layout.name_at(start) == due[0].name
    assert layout.name_at(layout.nbytes) == "(none)"


@given(layouts(), st.data())
def test_runs_cover_a_range_with_whole_elements_of_the_right_type(layout, data):
    for start, stop in layout.ranges(data.draw(cuts(layout.nbytes))):
        runs = layout.runs(start, stop)
        assert (runs[0].start, runs[-1].stop) == (start, stop)
        for left, right in pairwise(runs):
            assert left.stop == right.start
            assert left.dtype != right.dtype
        for run in runs:
            assert (run.stop - run.start) % BY_CODE[run.dtype].itemsize == 0
            assert {s.dtype for s in layout.overlapping(run.start, run.stop)} == {run.dtype}


def test_offsets_beyond_4_gib_are_exact():
    size = (5 << 30) + 3
    layout = Layout.of([("big", "U8", (size,)), ("wide", "F64", (1 << 30, 2)), ("z", "U8", (7,))])
    assert layout.nbytes == (16 << 30) + size + 7
    assert parse_header(text_of(layout), "it")[0] == layout
    ranges = list(layout.ranges(64 << 20))
    assert len(ranges) == -(-layout.nbytes // (64 << 20))
    assert ranges[-1] == (336 << 26, layout.nbytes)
    seam = (16 << 30) + size
    assert [spec.name for spec in layout.overlapping(seam - 1, seam + 1)] == ["big", "z"]
    assert layout.name_at(16 << 30) == "big"
    assert [run.dtype for run in layout.runs((16 << 30) - 16, seam)] == ["F64", "U8"]


def test_two_tensors_of_one_name_and_a_tie_of_the_formats_name_are_refused():
    with pytest.raises(LayoutError, match="same name"):
        Layout.of([("a", "F32", (1,)), ("a", "F16", (2,))])
    with pytest.raises(LayoutError, match="'__metadata__', which the format keeps"):
        parse_header(tied('{"__metadata__": "a"}'), "it")


def test_ties_are_part_of_what_a_layout_is():
    entries = [("a", "F32", (2,)), ("b", "F32", (2,))]
    plain, tied = Layout.of(entries), Layout.of(entries, {"c": "a"})
    other = Layout.of(entries, {"c": "b"})
    assert len({plain, tied, other, Layout.of(entries, {"c": "a"})}) == 3
    assert len({each.fingerprint for each in (plain, tied, other)}) == 3
    assert tied.is_canonical
    assert not Layout.of([("b", "U8", (1,))], {"a": "b"}).is_canonical


A, B, C = ("a", "F32", (2,)), ("b", "F32", (2,)), ("c", "F32", (2,))


@pytest.mark.parametrize(
    ("entries", "aliases", "sentence"),
    [
        ([A], {}, "tensor 'b' is missing"),
        ([("a", "F32", (3,)), B], {"c": "a"}, "'a' has shape [3] instead of [2]"),
        ([("a", "F16", (2,)), B], {"c": "a"}, "'a' has dtype F16 instead of F32"),
        ([A, B, ("d", "U8", (1,))], {"c": "a"}, "'d' is not part of the model"),
        ([A, B], {}, "'c' is missing"),
        ([A, B, C], {}, "'c' is not tied to 'a', as it is in the model"),
        ([A], {"b": "a", "c": "a"}, "'b' is tied to 'a', which it is not in the model"),
        ([A, B], {"c": "b"}, "'c' is tied to 'b', which it is not in the model"),
    ],
)
def test_the_first_difference_is_named(entries, aliases, sentence):
    layout = Layout.of([A, B], {"c": "a"})
    assert sentence in str(layout.difference(Layout.of(entries, aliases)))
    assert layout.difference(layout) is None


def test_another_order_is_a_difference():
    here, _ = parse_header(header(a=field(0, 1), b=field(1, 2)), "it")
    there, _ = parse_header(header(b=field(0, 1), a=field(1, 2)), "it")
    assert here.difference(there) == "the tensors are in another order"
    assert (here.is_canonical, there.is_canonical) == (True, False)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (b"\xff\xfe", "cannot be read"),
        (b"[" * 100_000, "cannot be read"),
        (b"[]", "cannot be read: Expected `object`"),
        (b'{"a": 1, "a": 2}', "'a' lacks a proper"),
        (b'{"__metadata__": {"a": 1}}', "not a table of strings"),
        (header(a={"dtype": "U8", "shape": [1]}), "'a' lacks a proper"),
        (header(a=field(0, 4, shape=[-2, -2])), "'a' lacks a proper"),
        (header(a=field(0, 1, shape=[True])), "'a' lacks a proper"),
        (header(a=field(0, 1, shape=[1] * 65)), "'a' lacks a proper"),
        (header(a=field(0, 1, dtype="F7")), "'a' has the dtype 'F7'"),
        (header(a=field(0, 8, dtype="F32", shape=[3])), "'a' takes 8 bytes"),
        (header(a=field(4, 0, shape=[4])), "'a' takes -4 bytes"),
        (header(a=field(1, 2)), "'a' does not begin at offset 0"),
        (header(a=field(0, 2), b=field(1, 3)), "'a' and 'b' overlap"),
        (header(a=field(0, 2), b=field(3, 4)), "'a' and 'b' leave a hole"),
        (b'{"\\ud800": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}', "surrogate"),
        (header(a={**field(0, 1), "extra": 1}), "'a' lacks .*, or has more: .* `extra`"),
        (b'{"a": {"dtype": "U8", "dtype": "I8", "shape": [], "data_offsets": [0, 1]}}', "twice"),
        (b'{"__metadata__": {"k": "1", "k": "2"}}', "stands there twice"),
        (tied("{"), "ties that are not a table of strings: .*truncated"),
        (tied("[" * 100_000), "not a table of strings"),
        (tied('{"c": "a", "c": "b"}'), "a name stands there twice"),
        (tied("[]"), "not a table of strings"),
        (tied('{"c": 1}'), "not a table of strings: Expected `str`, got `int`"),
        (tied('{"c": ["a"]}'), "not a table of strings: Expected `str`, got `array`"),
        (tied('{"c": "missing"}'), "ties 'c' to 'missing', which is none of its tensors"),
        (tied('{"c": "d", "d": "a"}'), "ties 'c' to 'd', which is none of its tensors"),
        (tied('{"c": "c"}'), "ties 'c' to 'c', which is none of its tensors"),
        (tied('{"a": "b"}'), "ties 'a', which is a tensor of its own"),
        (tied('{"\\ud800": "a"}'), "not a table of strings: .*surrogate"),
    ],
)
def test_a_header_that_describes_no_body_is_refused_with_a_sentence(text, sentence):
    with pytest.raises(LayoutError, match=sentence) as refusal:
        parse_header(text, "model.safetensors")
    assert "model.safetensors" in str(refusal.value)


@given(layouts(), st.integers(0, 2**32), st.binary(min_size=1, max_size=3))
def test_a_damaged_header_gives_a_layout_or_a_layout_error(layout, place, damage):
    text = bytearray(text_of(layout))
    place %= len(text)
    text[place : place + len(damage)] = damage
    try:
        read, _ = parse_header(bytes(text), "it")
    except LayoutError:
        return
    parse_header(read.plain_header[8:], "it")


@pytest.mark.parametrize(
    ("prefix", "available"),
    [
        (b"1234567", 100),
        ((101).to_bytes(8, "little"), 100),
        ((MAX_HEADER_BYTES + 1).to_bytes(8, "little"), 2 * MAX_HEADER_BYTES),
        (b"\xff" * 8, 2**62),
    ],
)
def test_a_header_longer_than_what_there_is_is_refused_before_it_is_read(prefix, available):
    with pytest.raises(LayoutError, match="it "):
        header_length(prefix, available, "it")


ORDERED = st.lists(st.text(min_size=1, max_size=4), min_size=1, max_size=8, unique=True)


@given(ORDERED, st.data())
def test_any_order_comes_back(names, data):
    names = [name for name in names if name != "__metadata__" and name.isascii()] or ["a"]
    dtypes = [data.draw(st.sampled_from(["F32", "F64", "BF16", "I64"])) for _ in names]
    ties = {f"{names[0]}~": names[0]} if data.draw(st.booleans()) else {}
    entries = ((name, dtype, (2,)) for name, dtype in zip(names, dtypes, strict=True))
    layout = Layout.of(entries, ties)
    shuffled = data.draw(st.permutations([*names, *ties]))
    text = order_text(layout, shuffled)
    values = {name: name.upper() for name in sorted(shuffled)}
    assert list(in_order(values, layout, text).items()) == [(n, n.upper()) for n in shuffled]


@pytest.mark.parametrize("text", ["", "[0]", "[0,0]", "[1,2]", "{", "3", '["a","b"]', "[-1,0]"])
def test_a_text_that_does_not_fit_gives_the_order_of_the_layout(text):
    layout = Layout.of([("b", "F32", (1,)), ("a", "F32", (1,))])
    assert list(in_order({"b": 1, "a": 2}, layout, text)) == ["a", "b"]
    assert order_text(layout, ["a", "b"]) == ""


def layout_of(sizes, ties=None):
    return Layout.of([(name, "F32", (size,)) for name, size in sizes.items()], ties)


def parts_of(sizes, count, order):
    layout, names = layout_of(sizes), tuple(sizes)
    return [selected_names("send", (Part(i, count, order),), layout, names) for i in range(count)]


# As a factory orders them; by name, h.10 comes before h.2.
DEEP = {"embed": 30, **{f"h.{i}.w": 100 for i in range(12)}, "norm.w": 5, "norm.b": 5, "head": 20}


def test_strided_parts_have_every_nth_layer_and_parts_in_order_the_following_ones():
    first, second, third = parts_of(DEEP, 3, "strided")
    assert {f"h.{i}.w" for i in (0, 3, 6, 9)} <= first
    assert {f"h.{i}.w" for i in (1, 4, 7, 10)} <= second
    assert {f"h.{i}.w" for i in (2, 5, 8, 11)} <= third
    assert {"norm.w", "norm.b"} <= third  # a layer of its own, never divided
    assert first | second | third == DEEP.keys()
    first, second, third = parts_of(DEEP, 3, "in_order")
    assert first == {"embed", *(f"h.{i}.w" for i in range(4))}
    assert second == {f"h.{i}.w" for i in range(4, 8)}
    assert third == {*(f"h.{i}.w" for i in range(8, 12)), "norm.w", "norm.b", "head"}


@pytest.mark.parametrize("order", ["strided", "in_order"])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_parts_have_nearly_equal_bytes_and_each_tensor_once(order, count):
    parts = parts_of(DEEP, count, order)
    sizes = [sum(DEEP[name] for name in part) for part in parts]
    assert sum(sizes) == sum(DEEP.values())
    assert max(sizes) <= 1.2 * sum(sizes) / count
    # None is empty where one layer outweighs all others.
    parts = parts_of({"a": 1000, "b": 1, "c": 1, "d": 1}, 4, order)
    assert sorted(map(sorted, parts)) == [["a"], ["b"], ["c"], ["d"]]


def test_patterns_match_whole_names_and_tied_ones_and_one_without_any_is_named():
    layout = layout_of({"a.w": 2, "a.wide": 2, "b.w": 2}, {"c.w": "a.w"})
    assert selected_names("send", (r"a\.w",), layout, ()) == {"a.w"}
    assert selected_names("send", (r"c\..*",), layout, ()) == {"a.w"}
    assert selected_names("send", (re.escape("b.w"), r".*wide"), layout, ()) == {"a.wide", "b.w"}
    assert selected_names("send", (), layout, ()) == set()
    with pytest.raises(WorkflowError, match=r"send has the pattern 'a', .* the model has a\.w"):
        selected_names("send", ("a",), layout_of({"a.w": 1}), ())
