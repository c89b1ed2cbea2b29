"""Cutting lists of views leaves every byte where it was."""

from hypothesis import given
from hypothesis import strategies as st

from flstream.transport.views import advance, split

pieces = st.lists(st.binary(max_size=20), max_size=12)


@given(pieces, st.data())
def test_the_two_parts_of_a_split_are_the_whole(parts, data):
    whole = b"".join(parts)
    count = data.draw(st.integers(0, len(whole)))
    first, rest = split([memoryview(part) for part in parts], count)
    assert b"".join(first) == whole[:count]
    assert b"".join(rest) == whole[count:]


@given(pieces, st.data())
def test_advancing_in_steps_meets_every_byte_once(parts, data):
    views, seen = [memoryview(part) for part in parts], b""
    while views:
        left = b"".join(views)
        count = data.draw(st.integers(0 if views[0].nbytes == 0 else 1, len(left)))
        seen += left[:count]
        views = advance(views, count)
    assert seen == b"".join(parts)


@given(pieces, st.data())
def test_a_split_copies_nothing(parts, data):
    buffers = [bytearray(part) for part in parts]
    total = sum(map(len, parts))
    first, rest = split([memoryview(b) for b in buffers], data.draw(st.integers(0, total)))
    for view in (*first, *rest):
        view[:] = bytes(len(view))
    assert b"".join(buffers) == bytes(total)
