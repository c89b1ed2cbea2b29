"""A resolved job, written out and read back from another folder, is the same job."""

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flstream.job import Job, job_keys, load_job, render_job

Write = Callable[..., Path]

KEYS = st.from_regex(r"[A-Za-z0-9_-]{1,8}", fullmatch=True) | st.just("include")
TEXTS = st.text(max_size=20) | st.text("\"\\\n\r\t$#{}${?X}/=:,'", max_size=12)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS
    | st.sampled_from(["10 s", "2m", "256 MiB", "null", "true", "1", "${HOME}", '"""', "a // b"])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)


def read_elsewhere(text: str) -> Job:
    with tempfile.TemporaryDirectory() as other:
        path = Path(other) / "resolved.conf"
        path.write_text(text, encoding="utf-8", newline="")
        return load_job(path)


def test_a_resolved_job_has_every_key_with_its_meaning_above_it(write: Write) -> None:
    lines = [line.strip() for line in render_job(load_job(write())).splitlines()]
    for key in job_keys().values():
        above = lines.index(f"# {key.meaning.splitlines()[0]}")
        assert lines[above + 1].startswith(f"{key.path[-1]} = ")


def test_sizes_and_durations_are_written_readably(write: Write) -> None:
    job = load_job(write("streaming { request_size = 1048576, window = 3 }"))
    text = render_job(job)
    assert "request_size = 1 MiB" in text
    assert "streaming_per_request_timeout = 600 s" in text


# Most of the time goes into reading the keys that every job has: few jobs, many values in each.
@pytest.mark.nightly
@settings(max_examples=30)
@given(
    model_args=st.dictionaries(KEYS, VALUES, max_size=10),
    train_args=st.dictionaries(KEYS, VALUES, max_size=10),
    streaming=st.fixed_dictionaries(
        {
            "tensor_download_chunk_size": st.just("auto")
            | st.integers(0, 2**26).map(lambda n: n * 16),
            "streaming_per_request_timeout": st.floats(1e-9, 1e9),
        }
    ),
    per_round=st.none() | st.integers(1, 8) | st.floats(0, 1, exclude_min=True),
    metric=st.from_regex(r"\S([^\n\r]{0,9}\S)?", fullmatch=True),
)
def test_a_rendered_job_loads_as_an_equal_job_from_another_folder(
    write: Write,
    model_args: dict[str, Any],
    train_args: dict[str, Any],
    streaming: dict[str, Any],
    per_round: float | None,
    metric: str,
) -> None:
    plain = load_job(write())
    values = plain.model_dump(by_alias=True)
    values["model"]["args"] = model_args
    values["train"]["args"] = train_args
    values["streaming"] |= streaming
    values["clients"]["per_round"] = per_round
    values["workflow"][0]["args"]["key_metric"] = metric
    job = Job.model_validate(values)
    assert read_elsewhere(render_job(job)) == job


def test_jobs_that_differ_in_a_key_are_not_equal(write: Write) -> None:
    assert load_job(write()) != load_job(write(), ["seed=1"])


def test_loading_a_job_imports_no_torch_and_no_numpy(write: Write) -> None:
    code = (
        "import sys; from flstream.job import load_job; load_job(sys.argv[1]);"
        "print(*{'torch', 'numpy', 'rich', 'typer'} & set(sys.modules))"
    )
    command = [sys.executable, "-c", code, str(write())]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "\n"
