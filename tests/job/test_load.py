"""What a job file may say, and what a job is once it is resolved."""

from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import ValidationError

from flstream.job import Job, job_keys, load_job

Write = Callable[..., Path]
MIB = 1024**2


def test_a_short_job_file_is_filled_in_with_the_defaults(write: Write, folder: Path) -> None:
    job = load_job(write())
    assert (job.name, job.seed, job.rounds, job.folder) == ("digits", 0, 10, folder)
    assert (job.clients.count, job.clients.cohort_size) == (8, 8)
    assert job.clients.threads == 1
    assert job.clients.round_timeout == 3600
    assert job.model.factory == f"{folder}/model.py:build"
    assert job.train.script == folder / "client.py"
    assert job.stages[0].type == "fedavg"
    assert job.stages[0].args.evaluate_every == 1
    assert job.aggregation.memory_budget == 48 * MIB
    assert (job.aggregation.method, job.aggregation.on_nonfinite) == ("mean", "reject")
    assert (job.aggregation.include, job.aggregation.exclude) == ([".*"], [])
    assert job.server_optimizer.type == "none"
    assert job.streaming.mode == "pull"
    assert job.streaming.tensor_download_chunk_size == "auto"
    assert job.streaming.np_download_chunk_size == "auto"
    assert job.streaming.streaming_per_request_timeout == 600
    assert job.streaming.request_size == 64 * MIB
    assert job.streaming.window == 2


def test_a_job_cannot_be_changed(write: Write) -> None:
    job = load_job(write())
    with pytest.raises(ValidationError):
        job.rounds = 3


def test_every_key_has_a_meaning_and_a_default_that_its_own_type_accepts(write: Write) -> None:
    for key in job_keys().values():
        assert key.meaning
        assert key.allowed
        if key.default is not None:
            assert key.parse(key.default, Path.cwd()) == key.default


@pytest.mark.parametrize(
    ("spelling", "size"),
    [
        ("4096", 4096),
        ('"4096"', 4096),
        ("2 MiB", 2 * MIB),
        ("2MB", 2_000_000),
        # pyhocon alone reads this as two minutes.
        ("2m", 2 * MIB),
        ("1.5 MiB", 3 * MIB // 2),
        ("0", 0),
    ],
)
def test_a_chunk_size_takes_every_spelling(write: Write, spelling: str, size: int) -> None:
    job = load_job(write(f"streaming.tensor_download_chunk_size = {spelling}"))
    assert job.streaming.tensor_download_chunk_size == size


@pytest.mark.parametrize(
    ("spelling", "seconds"),
    [("600", 600), ("10 s", 10), ("500 ms", 0.5), ("10 minutes", 600), ('"1h"', 3600)],
)
def test_a_timeout_takes_every_spelling(write: Write, spelling: str, seconds: float) -> None:
    job = load_job(write(f"streaming.streaming_per_request_timeout = {spelling}"))
    assert job.streaming.streaming_per_request_timeout == seconds


@pytest.mark.parametrize(
    ("spelling", "value", "cohort"),
    [
        ("1", 1, 1),
        ("1.0", 1.0, 8),
        ("0.5", 0.5, 4),
        ("0.01", 0.01, 1),
        ('"3"', 3, 3),
        ("null", None, 8),
    ],
)
def test_per_round_is_a_number_or_a_fraction(
    write: Write, spelling: str, value: float | None, cohort: int
) -> None:
    clients = load_job(write(f"clients.per_round = {spelling}")).clients
    assert (clients.per_round, type(clients.per_round)) == (value, type(value))
    assert clients.cohort_size == cohort


def test_free_arguments_stay_as_they_are_written(write: Write) -> None:
    text = """train.args { size = 256 MiB, wait = 10 s, note = 10 seconds and more, lr = 1e-3,
      names = ["", a, [null, ""]], flag = true, nested { deep-key_1 = null } }"""
    assert load_job(write(text)).train.args == {
        "size": "256 MiB",
        "wait": "10 s",
        "note": "10 seconds and more",
        "lr": 0.001,
        "names": ["", "a", [None, ""]],
        "flag": True,
        "nested": {"deep-key_1": None},
    }


def test_environment_and_substitutions_are_resolved(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JOB_CLIENTS", "4")
    monkeypatch.delenv("JOB_ROUNDS", raising=False)
    text = "clients.count = ${?JOB_CLIENTS}, rounds = ${?JOB_ROUNDS}, seed = ${rounds}"
    job = load_job(write(text + "\nmodel.args.home = ${JOB_CLIENTS}/x"))
    assert (job.clients.count, job.rounds, job.seed) == (4, 10, 10)
    assert job.model.args == {"home": "4/x"}


def test_an_include_and_repeated_sections_merge(write: Write, folder: Path) -> None:
    (folder / "common").mkdir()
    (folder / "common" / "outer.conf").write_text('include "inner.conf"\nseed = 5')
    (folder / "common" / "inner.conf").write_text("clients { threads = 2 }, seed = 4")
    job = load_job(write('include "common/outer.conf"\nclients { per_round = 2 }'))
    assert (job.seed, job.clients.count) == (5, 8)
    assert (job.clients.threads, job.clients.per_round) == (2, 2)


def test_included_files_of_a_pattern_merge_in_order_of_name(write: Write, folder: Path) -> None:
    for number in (2, 3, 1):
        (folder / f"part{number}.conf").write_text(f"seed = {number}")
    assert load_job(write('include "part*.conf"')).seed == 3


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("seed=8", "seed", 8),
        ("clients.count=4", "clients.count", 4),
        ("streaming.tensor_download_chunk_size=0", "streaming.tensor_download_chunk_size", 0),
        (
            "streaming.streaming_per_request_timeout=10 s",
            "streaming.streaming_per_request_timeout",
            10,
        ),
        ("model.args.size=1GiB", "model.args", {"a": 1, "size": "1GiB"}),
        ("model.args={b = 2}", "model.args", {"b": 2}),
        ('model.args.a="a,b=c"', "model.args", {"a": "a,b=c"}),
        ("model.args.a=a,b=c # d", "model.args", {"a": "a,b=c # d"}),
        ("model.args.a=[1, 2]", "model.args", {"a": [1, 2]}),
        ("model.args.a=false", "model.args", {"a": False}),
        ("model.args.a=-1.5e3", "model.args", {"a": -1500.0}),
        ("model.args.a=${HOME}/x", "model.args", {"a": "/home/me/x"}),
        ("model.args.a=", "model.args", {"a": ""}),
    ],
)
def test_an_override_replaces_what_the_file_says(
    write: Write, monkeypatch: pytest.MonkeyPatch, override: str, path: str, value: object
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    found: object = load_job(write("model.args.a = 1"), [override])
    for name in path.split("."):
        found = getattr(found, name)
    assert found == value


def test_an_override_can_mend_a_mistake_in_the_file(write: Write) -> None:
    assert load_job(write("rounds = none"), ["rounds=1", "rounds=2"]).rounds == 2


@pytest.mark.parametrize("factory", ["model:build", "./model.py:build", "{folder}/model.py:build"])
def test_a_factory_beside_the_job_file_is_found_from_anywhere(
    write: Write, folder: Path, factory: str
) -> None:
    job = load_job(write(f'model.factory = "{factory.format(folder=folder)}"'))
    assert job.model.factory == f"{folder}/model.py:build"


def test_a_factory_may_be_in_a_package_beside_the_job_file(write: Write, folder: Path) -> None:
    (folder / "nets").mkdir()
    (folder / "nets" / "__init__.py").write_text(
        "try:\n    from .a import Net as Big\nfinally: ..."
    )
    assert load_job(write("model.factory = nets:Big")).model.factory == (
        f"{folder}/nets/__init__.py:Big"
    )


def test_a_factory_in_an_installed_module_keeps_its_name(write: Write) -> None:
    assert load_job(write("model.factory = json:JSONDecoder")).model.factory == "json:JSONDecoder"


def test_initial_weights_alone_are_enough(write: Write, folder: Path) -> None:
    (folder / "w.safetensors").touch()
    job = load_job(write("model { factory = null, initial = w.safetensors }"))
    assert (job.model.factory, job.model.initial) == (None, folder / "w.safetensors")


def test_a_relative_path_of_the_job_file_is_enough(
    write: Write, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write()
    monkeypatch.chdir(folder)
    assert load_job("job.conf").train.script == folder / "client.py"


def test_a_byte_order_mark_and_windows_line_ends_are_read(write: Write) -> None:
    path = write()
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    assert isinstance(load_job(path), Job)
