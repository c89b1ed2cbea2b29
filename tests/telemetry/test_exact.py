"""The journal restores the result of an effect exactly."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flstream.telemetry.exact import decode_exact, encode_exact

numbers = st.booleans() | st.integers() | st.floats() | st.floats(width=32).map(np.float32)
keys = st.text() | st.integers() | st.booleans() | st.sampled_from(["$float", "$dict", "$"])
values = st.recursive(
    st.none() | numbers | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(keys, inner, max_size=4)
    ),
    max_leaves=20,
)


@given(values)
def test_a_value_comes_back_exactly(value):
    # Their words tell 1 from True, 1.0 and a NumPy scalar, and a NaN is equal to itself in them.
    assert repr(decode_exact(encode_exact(value))) == repr(value)


def test_what_cannot_be_kept_and_an_unknown_kind_are_refused():
    with pytest.raises(TypeError, match="a set cannot be kept in the journal"):
        encode_exact({"seen": {1, 2}})
    with pytest.raises(ValueError, match="no kind of value"):
        decode_exact(b'{"$pickle": "x"}')
