"""The journal restores the result of an effect exactly."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flstream.telemetry.exact import decode_exact, encode_exact

scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
)
keys = st.text() | st.integers() | st.booleans() | st.sampled_from(["$float", "$dict", "$"])
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(keys, inner, max_size=4)
    ),
    max_leaves=20,
)


@given(values)
def test_a_value_comes_back_exactly(value):
    decoded = decode_exact(encode_exact(value))
    assert decoded == value
    assert repr(decoded) == repr(value)  # which tells 1 from True and 1.0


def test_a_nan_and_a_numpy_scalar_come_back():
    assert math.isnan(decode_exact(encode_exact({"loss": math.nan}))["loss"])
    decoded = decode_exact(encode_exact(np.float32(0.1)))
    assert type(decoded) is np.float32
    assert decoded == np.float32(0.1)


def test_what_cannot_be_kept_and_an_unknown_kind_are_refused():
    with pytest.raises(TypeError, match="a set cannot be kept in the journal"):
        encode_exact({"seen": {1, 2}})
    with pytest.raises(ValueError, match="no kind of value"):
        decode_exact(b'{"$pickle": "x"}')
