"""Training code finds tensors in the order of the factory, whatever the order of their bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flstream.model.layout import Layout
from flstream.model.order import in_order, order_text

NAMES = st.lists(st.text(min_size=1, max_size=4), min_size=1, max_size=8, unique=True)


@given(NAMES, st.data())
def test_any_order_comes_back(names, data):
    names = [name for name in names if name != "__metadata__" and name.isascii()] or ["a"]
    dtypes = [data.draw(st.sampled_from(["F32", "F64", "BF16", "I64"])) for _ in names]
    tied = {f"{names[0]}~": names[0]} if data.draw(st.booleans()) else {}
    entries = ((name, dtype, (2,)) for name, dtype in zip(names, dtypes, strict=True))
    layout = Layout.of(entries, tied)
    shuffled = data.draw(st.permutations([*names, *tied]))
    text = order_text(layout, shuffled)
    values = {name: name.upper() for name in sorted(shuffled)}
    assert list(in_order(values, layout, text).items()) == [(n, n.upper()) for n in shuffled]


@pytest.mark.parametrize("text", ["", "[0]", "[0,0]", "[1,2]", "{", "3", '["a","b"]', "[-1,0]"])
def test_a_text_that_does_not_fit_gives_the_order_of_the_layout(text):
    layout = Layout.of([("b", "F32", (1,)), ("a", "F32", (1,))])
    assert list(in_order({"b": 1, "a": 2}, layout, text)) == ["a", "b"]
    assert order_text(layout, ["a", "b"]) == ""
