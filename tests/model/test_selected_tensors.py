"""Selections of tensors: patterns of whole names, and parts of nearly equal bytes."""

import re

import pytest

from flstream.errors import WorkflowError
from flstream.model.layout import Layout
from flstream.model.selection import Part, selected_names


def layout_of(sizes, ties=None):
    return Layout.of([(name, "F32", (size,)) for name, size in sizes.items()], ties)


def parts_of(sizes, count, order):
    layout, names = layout_of(sizes), tuple(sizes)
    return [selected_names("send", (Part(i, count, order),), layout, names) for i in range(count)]


# As a factory orders them; by name, h.10 comes before h.2.
DEEP = {"embed": 30, **{f"h.{i}.w": 100 for i in range(12)}, "norm.w": 5, "norm.b": 5, "head": 20}


def test_strided_parts_have_every_nth_layer_and_embeddings_where_there_is_room():
    first, second, third = parts_of(DEEP, 3, "strided")
    assert {f"h.{i}.w" for i in (0, 3, 6, 9)} <= first
    assert {f"h.{i}.w" for i in (1, 4, 7, 10)} <= second
    assert {f"h.{i}.w" for i in (2, 5, 8, 11)} <= third
    assert {"norm.w", "norm.b"} <= third  # a layer of its own, never divided
    assert first | second | third == DEEP.keys()


def test_parts_in_order_have_layers_that_follow_each_other():
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


@pytest.mark.parametrize("order", ["strided", "in_order"])
def test_no_part_is_empty_where_one_layer_outweighs_all_others(order):
    parts = parts_of({"a": 1000, "b": 1, "c": 1, "d": 1}, 4, order)
    assert sorted(map(sorted, parts)) == [["a"], ["b"], ["c"], ["d"]]


def test_patterns_match_whole_names_and_tied_ones():
    layout = layout_of({"a.w": 2, "a.wide": 2, "b.w": 2}, {"c.w": "a.w"})
    assert selected_names("send", (r"a\.w",), layout, ()) == {"a.w"}
    assert selected_names("send", (r"c\..*",), layout, ()) == {"a.w"}
    assert selected_names("send", (re.escape("b.w"), r".*wide"), layout, ()) == {"a.wide", "b.w"}
    assert selected_names("send", (), layout, ()) == set()


def test_a_pattern_that_matches_no_name_is_named():
    with pytest.raises(WorkflowError, match=r"send has the pattern 'a', .* the model has a\.w"):
        selected_names("send", ("a",), layout_of({"a.w": 1}), ())
