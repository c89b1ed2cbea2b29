"""A key's annotation is all that its messages and its entry in the reference are made of."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field

from flstream.job import job_keys
from flstream.job.annotations import described
from flstream.job.hocon import read_hocon
from flstream.job.problems import RefusedValueError
from flstream.job.rules import Patterns, Real, Seconds, Size, Whole

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["auto", "all", "mean", "1", "2 MiB", "10 s", "1%", "up", "zstd", "model:x"])
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "up", "site-1", "a b", '"a.b"']), inner)
    ),
    max_leaves=6,
)


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (int, "a whole number"),
        (bool, "true or false"),
        (Literal["one"], "one"),
        (Literal["one", "two"], "one of one, two"),
        (Annotated[Whole, Field(ge=1)], "a whole number of at least 1"),
        (Annotated[int, Field(ge=1, le=10**6)] | None, "a whole number from 1 to 1000000"),
        (Annotated[Whole, Field(ge=1)] | Literal["all"], "a whole number of at least 1, or all"),
        (Annotated[Real, Field(gt=0, lt=1)], "a number above 0 and below 1"),
        (Annotated[float, Field(ge=0.01, le=100)], "a number of at least 0.01 and at most 100"),
        (Annotated[Size, Field(ge=1 << 20)], "a size of at least 1 MiB"),
        (Annotated[Patterns, Field(min_length=2)], "a list of regular expressions, at least 2"),
        (list[float], "of the type list[float]"),
        (list[float] | Whole, "of the type list[float], or a whole number"),
    ],
)
def test_the_values_of_a_type_are_put_into_words(annotation: Any, words: str) -> None:
    assert described(annotation) == words


@settings(deadline=None, max_examples=60)
@given(value=VALUES)
def test_any_value_is_taken_and_written_back_or_refused_in_a_sentence(
    tmp_path: Path, value: Any
) -> None:
    path = tmp_path / "value.conf"
    for key in job_keys().values():
        try:
            found = key.parse(value, Path("/nowhere"))
        except RefusedValueError as refused:
            for problem in refused.problems:
                assert problem.given
                assert problem.allowed or problem.hint
                assert "function-" not in str(problem)
        else:
            path.write_text(f"value = {key.render(found)}", encoding="utf-8")
            again = read_hocon(path).values["value"]
            assert found is None or key.parse(again, Path("/nowhere")) == found, key.name


def test_a_refusal_quotes_what_the_file_gives_and_not_what_was_read_of_it() -> None:
    keys = job_keys()
    written = {
        "aggregation.memory_budget": "1 KiB",
        "rounds": "0",
        "clients.per_round": "1.5",
        "streaming.tensor_download_chunk_size": "4100 B",
    }
    for name, value in written.items():
        with pytest.raises(RefusedValueError) as caught:
            keys[name].parse(value, Path.cwd())
        [problem] = caught.value.problems
        assert problem.given == f"given {json.dumps(value)}"
    assert described(Seconds).endswith("longer than 0")
