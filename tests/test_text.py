"""Text from elsewhere is shown printable, and up to a length."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flstream.text import printable, quotable, shortened


@given(st.text(max_size=100), st.integers(10, 60))
def test_text_is_as_it_was_unless_it_is_too_long_and_then_lacks_its_middle(text, most):
    shown = shortened(text, most)
    if len(text) <= most:
        assert shown == text
    else:
        begin, end = shown.split(" [...] ", 1) if text.count(" [...] ") == 0 else ("", "")
        assert len(shown) == most
        assert text.startswith(begin)
        assert text.endswith(end)
        assert abs(len(begin) - len(end)) <= 1


@given(st.text(max_size=100), st.integers(10, 60))
def test_what_is_quoted_is_printable_and_no_longer_than_it_may_be(text, most):
    assert len(quotable(text, most)) <= most
    assert quotable(text, most).isprintable()


@pytest.mark.parametrize("text", ["\x1b[2J", "line\nline", "\r", "\u2028"])
def test_what_would_move_a_cursor_is_escaped(text):
    assert printable(text).isprintable()
    assert quotable(text) == printable(text)
