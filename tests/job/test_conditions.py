"""Conditions of `stop_when`: one spelling each, or a refusal that names the place."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flstream.job.conditions import Condition, read_condition


@given(
    metric=st.from_regex(r"[^\s<>=]+", fullmatch=True),
    operator=st.sampled_from([">=", "<=", ">", "<"]),
    number=st.floats(allow_nan=False, allow_infinity=False),
)
def test_a_condition_reads_back_from_its_text(metric, operator, number):
    condition = Condition(metric, operator, number)
    assert read_condition(str(condition)) == condition
    assert read_condition(f"{metric}{operator}{number!r}") == condition


@given(text=st.text() | st.text("ab<>=!10.e-+ ", max_size=12))
def test_a_text_is_a_condition_or_is_refused_with_a_character_that_it_has(text):
    try:
        condition = read_condition(text)
    except ValueError as error:
        position = int(str(error).split(":")[0].removeprefix("character "))
        assert 1 <= position <= len(text) + 1
    else:
        assert read_condition(str(condition)) == condition


METRIC, OPERATOR, NUMBER = "the name of a metric", "one of >= <= > <", "one finite number"


@pytest.mark.parametrize(
    ("text", "place", "due"),
    [
        ('">= 0.9"', 1, METRIC),
        ("accuracy", 9, OPERATOR),
        ('"accuracy => 0.97"', 10, OPERATOR),
        ('"mean loss < 1"', 6, OPERATOR),
        ('"accuracy >= 97%"', 13, NUMBER),
        ('"loss < 1 and a > 2"', 8, NUMBER),
        ('"loss < nan"', 8, NUMBER),
        ('"loss < 1e999"', 8, NUMBER),
        ("[a]", None, "must be a metric, one of"),
    ],
)
def test_a_mistake_in_a_condition_is_named_with_its_place(mistakes, text, place, due):
    [problem] = mistakes(f"stop_when = {text}")
    assert problem.key == "stop_when"
    said = f"character {place}: {due} must come here" if place else due
    assert said in str(problem)
