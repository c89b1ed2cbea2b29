"""Conditions of `stop_when`: one spelling each, or a refusal."""

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
def test_a_text_is_a_condition_or_is_refused(text):
    try:
        condition = read_condition(text)
    except ValueError:
        return
    assert read_condition(str(condition)) == condition


FORM = 'must be a metric, one of >= <= > < and a number, such as "accuracy >= 0.97"'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('">= 0.9"', FORM),
        ("accuracy", FORM),
        ('"accuracy => 0.97"', FORM),
        ('"mean loss < 1"', FORM),
        ('"accuracy >= 97%"', f"{FORM}; 97% is no finite number"),
        ('"loss < 1 and a > 2"', FORM),
        ('"loss < nan"', f"{FORM}; nan is no finite number"),
        ('"loss < 1e999"', f"{FORM}; 1e999 is no finite number"),
        ("[a]", FORM),
    ],
)
def test_a_mistake_in_a_condition_is_answered_with_its_form(mistakes, text, words):
    [problem] = mistakes(f"stop_when = {text}")
    assert problem.key == "stop_when"
    assert str(problem).endswith(words)
