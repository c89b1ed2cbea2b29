"""Text from elsewhere is shown printable, and up to a length."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flstream.text import natural_key, printable, quotable, shortened


@pytest.mark.parametrize(
    ("text", "most", "due"),
    [("abcdef", 6, "abcdef"), ("aaaaaaabbbbbbb", 13, "aaa [...] bbb")],
)
def test_text_is_as_it_was_unless_it_is_too_long_and_then_lacks_its_middle(text, most, due):
    assert shortened(text, most) == due


@given(st.text(max_size=100) | st.sampled_from(["\x1b[2J", "line\nline", "\r", "\u2028"]))
def test_what_is_quoted_is_printable_and_no_longer_than_it_may_be(text):
    assert len(quotable(text, 20)) <= 20
    assert quotable(text, 20).isprintable()
    assert printable(text).isprintable()


def test_names_sort_by_their_numbers_and_those_of_settings_by_their_values():
    names = ["site-2", "site-10", "site-a", "v1.9", "v1.10"]
    assert sorted({*names}, key=natural_key) == names
    values = ["lr=-2", "lr=1e-05", "lr=0.03", "lr=0.1,seed=9", "lr=0.1,seed=10", "lr=2", "lr=10/a"]
    assert sorted({*values}, key=natural_key) == values
