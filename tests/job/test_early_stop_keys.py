"""`stop_when`, `patience` and `checkpoints.keep`: what they take, and what they answer."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flstream.job import JobError, load_job, render_job
from flstream.job.conditions import Condition, read_condition

Write = Callable[..., Path]


def lines(path: Path, *overrides: str) -> list[str]:
    """Return the mistakes of a job file, a line each."""
    with pytest.raises(JobError) as caught:
        load_job(path, overrides)
    return [line.strip() for line in str(caught.value).splitlines()[1:]]


def test_by_default_a_job_runs_all_its_rounds_and_keeps_all_checkpoints(write: Write) -> None:
    job = load_job(write())
    assert (job.stop_when, job.patience, job.checkpoints.keep) == (None, None, "all")


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("accuracy >= 0.97", "accuracy >= 0.97"),
        ("  loss<.5 ", "loss < 0.5"),
        ("top-5@val/acc.1 <=97", "top-5@val/acc.1 <= 97"),
        ("delta > -1e-3", "delta > -0.001"),
        ("\u03b4>+2.50", "\u03b4 > 2.5"),
    ],
)
def test_a_condition_has_one_spelling(write: Write, given: str, read: str) -> None:
    assert load_job(write(f'stop_when = "{given}"')).stop_when == read
    assert load_job(write(), [f"stop_when={given}"]).stop_when == read


@given(
    metric=st.from_regex(r"[^\s<>=]+", fullmatch=True),
    operator=st.sampled_from([">=", "<=", ">", "<"]),
    number=st.floats(allow_nan=False, allow_infinity=False),
)
def test_a_condition_reads_back_from_its_text(metric: str, operator: str, number: float) -> None:
    condition = Condition(metric, operator, number)
    assert read_condition(str(condition)) == condition
    assert read_condition(f"{metric}{operator}{number!r}") == condition


@given(text=st.text() | st.text("ab<>=!10.e-+ ", max_size=12))
def test_a_text_is_a_condition_or_is_refused_with_a_character_that_it_has(text: str) -> None:
    try:
        condition = read_condition(text)
    except ValueError as error:
        position = int(str(error).split(":")[0].removeprefix("character "))
        assert 1 <= position <= len(text) + 1
    else:
        assert read_condition(str(condition)) == condition


ALLOWED = 'must be a metric, one of >= <= > < and a number, such as "accuracy >= 0.97"'


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("0.97", f"stop_when: given 0.97; {ALLOWED}"),
        ("[a]", f'stop_when: given ["a"]; {ALLOWED}'),
        ('""', f'stop_when: given ""; {ALLOWED}; character 1: the name of a metric must come '
         "here, but the text ends"),
        ('">= 0.9"', f'stop_when: given ">= 0.9"; {ALLOWED}; character 1: the name of a metric '
         'must come here, not ">= 0.9"'),
        ("accuracy", f'stop_when: given "accuracy"; {ALLOWED}; character 9: one of >= <= > < '
         "must come here, but the text ends"),
        ('"accuracy => 0.97"', f'stop_when: given "accuracy => 0.97"; {ALLOWED}; character 10: '
         'one of >= <= > < must come here, not "=> 0.97"'),
        ('"accuracy == 1"', f'stop_when: given "accuracy == 1"; {ALLOWED}; character 10: '
         'one of >= <= > < must come here, not "== 1"'),
        ('"mean loss < 1"', f'stop_when: given "mean loss < 1"; {ALLOWED}; character 6: '
         'one of >= <= > < must come here, not "loss < 1"'),
        ('"accuracy >="', f'stop_when: given "accuracy >="; {ALLOWED}; character 12: one finite '
         "number must come here, but the text ends"),
        ('"accuracy >= 97%"', f'stop_when: given "accuracy >= 97%"; {ALLOWED}; character 13: '
         'one finite number must come here, not "97%"'),
        ('"loss < 1 and a > 2"', f'stop_when: given "loss < 1 and a > 2"; {ALLOWED}; character '
         '8: one finite number must come here, not "1 and a > 2"'),
        ('"loss < nan"', f'stop_when: given "loss < nan"; {ALLOWED}; character 8: one finite '
         'number must come here, not "nan"'),
        ('"loss < 1e999"', f'stop_when: given "loss < 1e999"; {ALLOWED}; character 8: one '
         'finite number must come here, not "1e999"'),
    ],
)  # fmt: skip
def test_a_mistake_in_a_condition_is_named_with_its_place(
    write: Write, text: str, mistake: str
) -> None:
    assert lines(write(f"stop_when = {text}")) == [mistake]


@pytest.mark.parametrize("value", ["0", "-1", "2.5", "true", "all"])
def test_patience_is_a_whole_number_of_evaluations(write: Write, value: str) -> None:
    [line] = lines(write(f"patience = {value}"))
    assert line.endswith("must be a whole number of at least 1")


def test_early_stopping_without_evaluations_is_a_mistake_of_each_key(write: Write) -> None:
    never = "workflow.args = { evaluate = task, evaluate_every = 0 }"
    path = write(f'{never}, stop_when = "a>1", patience = 2, seed = -1')
    allowed = "must be null where workflow.args.evaluate_every is 0, as no round is evaluated"
    assert lines(path) == [
        "seed: given -1; must be a whole number from 0 to 18446744073709551615",
        f'stop_when: given "a > 1"; {allowed}',
        f"patience: given 2; {allowed}",
    ]
    assert load_job(path, ["stop_when=null", "patience=null", "seed=1"]).patience is None
    assert load_job(path, ["workflow.args.evaluate=received", "seed=1"]).patience == 2
    assert load_job(path, ["workflow.args.evaluate_every=3", "seed=1"]).patience == 2


@pytest.mark.parametrize(("value", "keep"), [("all", "all"), ("1", 1), ('"3"', 3)])
def test_a_number_of_checkpoints_is_kept_or_all(write: Write, value: str, keep: object) -> None:
    assert load_job(write(f"checkpoints {{ keep = {value} }}")).checkpoints.keep == keep


@pytest.mark.parametrize("value", ["0", "-2", "1.5", "none", "All", "null", "true"])
def test_any_other_number_of_checkpoints_is_refused(write: Write, value: str) -> None:
    [line] = lines(write(f"checkpoints.keep = {value}"))
    assert line.startswith("checkpoints.keep: given ")
    assert line.endswith("must be a whole number of at least 1, or all")


def test_the_keys_are_written_out_such_that_they_read_back(write: Write, folder: Path) -> None:
    overrides = ["stop_when=loss<0.1", "patience=3", "checkpoints.keep=2"]
    job = load_job(write(), overrides)
    resolved = folder / "resolved.conf"
    resolved.write_text(render_job(job))
    assert load_job(resolved) == job
    assert 'stop_when = "loss < 0.1"' in resolved.read_text()
