"""What a job file may say, and what a job is once it is resolved."""

import copy
import pickle
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from flstream.job import Job, JobError, job_keys, load_job, make_job, render_job
from flstream.job.hocon import read_hocon
from flstream.job.values import render_value

MIB = 1024**2


def value_of(values: Any, key: str) -> Any:
    for name in key.split("."):
        values = values[name]
    return values


def value_at(job: Job, key: str) -> Any:
    found: Any = job
    for name in key.split("."):
        found = getattr(found, name)
    return found


def test_differences_by_openfls_names_are_codecs(load):
    names = "send_model_deltas", "use_delta_updates"
    job = load("", *(f"streaming.{name}=true" for name in names))
    codecs = job.streaming.codecs
    exact = ["delta", "shuffle", "zstd"]
    assert [spec.type for spec in codecs.up] == [spec.type for spec in codecs.down] == exact
    assert codecs.of_updates.needs_base
    own = load("", "streaming.send_model_deltas=true", "streaming.codecs.up=[delta, zstd]")
    assert [spec.type for spec in own.streaming.codecs.up] == ["delta", "zstd"]


def test_a_short_job_file_is_filled_in_with_the_defaults(load, folder):
    job = load()
    assert job.model.factory == f"{folder}/model.py:build"
    assert job.train.script == folder / "client.py"
    [stage] = job.stages
    assert (stage.name, stage.program) == ("fedavg", "flstream.workflows.fedavg:fedavg")
    due = {
        "name": "digits",
        "seed": 0,
        "rounds": 10,
        "folder": folder,
        "clients.count": 8,
        "clients.cohort_size": 8,
        "clients.threads": 1,
        "clients.round_timeout": 3600,
        "aggregation.type": "mean",
        "aggregation.on_nonfinite": "reject",
        "streaming.mode": "pull",
        "streaming.maps": False,
        "streaming.tensor_download_chunk_size": 2 * MIB,
        "streaming.streaming_per_request_timeout": 600,
        "network.is_on": False,
        "privacy.is_on": False,
        "key_metric": "accuracy",
        "key_metric_mode": "max",
    }
    assert {key: value_at(job, key) for key in due} == due
    with pytest.raises(ValidationError):
        job.rounds = 3


def test_every_key_has_a_meaning_and_a_default_that_its_own_type_accepts(load):
    written = load().written()
    for key in job_keys().values():
        assert key.meaning
        assert key.allowed
        if not key.required and not key.name.startswith(("model.", "train.", "clients.")):
            assert value_of(written, key.name) == key.default, key.name
    assert make_job(written, Path("/nowhere"), "written").written() == written


CHUNK = "streaming.tensor_download_chunk_size"
TIMEOUT = "streaming.streaming_per_request_timeout"


@pytest.mark.parametrize(
    ("key", "spelling", "value"),
    [
        (CHUNK, "4096", 4096),
        (CHUNK, '"4096"', 4096),
        (CHUNK, "2 MiB", 2 * MIB),
        (CHUNK, "2MB", 2_000_000),
        (CHUNK, "2m", 2 * MIB),  # pyhocon alone reads this as two minutes
        (CHUNK, "1.5 MiB", 3 * MIB // 2),
        (CHUNK, "0", 0),
        (TIMEOUT, "600", 600),
        (TIMEOUT, "10 s", 10),
        (TIMEOUT, "500 ms", 0.5),
        (TIMEOUT, "10 minutes", 600),
        (TIMEOUT, '"1h"', 3600),
        ("streaming.mode", "map", "map"),
        ("checkpoints.keep", '"3"', 3),
        ("clients.gpus", '[0, "1, 2"]', ["0", "1,2"]),
        ("train.preload", "[json, os.path]", ["json", "os.path"]),
        ("stop_when", '"accuracy >= 0.97"', "accuracy >= 0.97"),
        ("stop_when", '"  loss<.5 "', "loss < 0.5"),
        ("stop_when", '"top-5@val/acc.1 <=97"', "top-5@val/acc.1 <= 97"),
        ("stop_when", '"delta > -1e-3"', "delta > -0.001"),
        ("stop_when", '"\u03b4>+2.50"', "\u03b4 > 2.5"),
    ],
)
def test_a_value_takes_every_spelling(load, key, spelling, value):
    assert value_at(load(f"{key} = {spelling}"), key) == value


@pytest.mark.parametrize(
    ("spelling", "value", "cohort"),
    [("1", 1, 1), ("1.0", 1.0, 8), ("0.5", 0.5, 4), ("0.01", 0.01, 1), ('"3"', 3, 3)],
)
def test_per_round_is_a_number_or_a_fraction(load, spelling, value, cohort):
    clients = load(f"clients.per_round = {spelling}").clients
    assert (clients.per_round, type(clients.per_round)) == (value, type(value))
    assert clients.cohort_size == cohort


def test_free_arguments_stay_as_they_are_written(load):
    text = '''train.args { size = 256 MiB, wait = 10 s, note = 10 seconds and more, lr = 1e-3,
      names = ["", a, [null, ""]], flag = true, nested { deep-key_1 = null }, sum = "x += 3" # y +=
      lines = """\na:\n  b: 1\n""", other:\n  3 }'''
    assert load(text).train.args == {
        "size": "256 MiB",
        "wait": "10 s",
        "note": "10 seconds and more",
        "lr": 0.001,
        "names": ["", "a", [None, ""]],
        "flag": True,
        "nested": {"deep-key_1": None},
        "sum": "x += 3",
        "lines": "\na:\n  b: 1\n",
        "other": 3,
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("args.a = [1, 2]\ntrain.args.a += 3\ntrain.args.a += [4]", [1, 2, 3, [4]]),
        ("args { a = [1] }\ntrain { args { a += x, a += { b = 2 } } }", [1, "x", {"b": 2}]),
        ("args { a += ${seed}, a += ${?NO_SUCH} }", [7]),
        ("args { b = [0], a = ${train.args.b} }\ntrain.args.a += 1", [0, 1]),
        ("args.a = [1]\ntrain { args { a = [2] }, args { a += 3, a += 4 } }", [2, 3, 4]),
        ("args.a += 1\ntrain { args { a = [2], a += 3 } }", [2, 3]),
        ("args.a = [1]\ntrain.args.a += 2\ntrain.args.a = [3]\ntrain.args.a += 4", [3, 4]),
    ],
)
def test_appended_values_follow_those_of_the_list_before(load, text, expected):
    assert load(f"seed = 7, train.{text}").train.args["a"] == expected


def test_included_files_and_repeated_sections_merge(load, folder):
    (folder / "common").mkdir()
    (folder / "common" / "outer.conf").write_text('include "inner.conf"\nseed = 5')
    (folder / "common" / "inner.conf").write_text("clients { threads = 2 }, seed = 4")
    job = load('include "common/outer.conf"\nclients { per_round = 2 }')
    assert (job.seed, job.clients.count) == (5, 8)
    assert (job.clients.threads, job.clients.per_round) == (2, 2)
    # Files of a pattern come in the order of their names.
    for number in (2, 3, 1):
        (folder / f"part{number}.conf").write_text(f"seed = {number}")
    assert load('include "part*.conf"').seed == 3


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("seed=8", "seed", 8),
        ("clients.count=4", "clients.count", 4),
        ("stop_when=loss<0.1", "stop_when", "loss < 0.1"),
        (f"{CHUNK}=0", CHUNK, 0),
        (f"{TIMEOUT}=10 s", TIMEOUT, 10),
        ("workflow[0].args.key_metric=a", "key_metric", "a"),
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
def test_an_override_replaces_what_the_file_says(load, monkeypatch, override, key, value):
    monkeypatch.setenv("HOME", "/home/me")
    assert value_at(load("model.args.a = 1", override), key) == value


def test_an_override_can_mend_a_mistake_in_the_file(load):
    assert load("rounds = none", "rounds=1", "rounds=2").rounds == 2
    never = 'workflow.args { evaluate = task, evaluate_every = 0 }, stop_when = "a>1", patience = 2'
    assert load(never, "stop_when=null", "patience=null").patience is None
    assert load(never, "workflow.args.evaluate=received").patience == 2
    assert load(never, "workflow.args.evaluate_every=3").patience == 2


@pytest.mark.parametrize(
    ("factory", "due"),
    [
        ("model:build", "{folder}/model.py:build"),
        ("./model.py:build", "{folder}/model.py:build"),
        ("{folder}/model.py:build", "{folder}/model.py:build"),
        ("nets:Big", "{folder}/nets/__init__.py:Big"),
        ("json:JSONDecoder", "json:JSONDecoder"),
    ],
)
def test_a_factory_is_beside_the_job_file_or_installed_or_there_are_weights_alone(
    load, folder, factory, due
):
    (folder / "nets").mkdir()
    package = "try:\n    from .a import Net as Big\nfinally: ..."
    (folder / "nets" / "__init__.py").write_text(package)
    job = load(f'model.factory = "{factory.format(folder=folder)}"')
    assert job.model.factory == due.format(folder=folder)
    (folder / "w.safetensors").touch()
    job = load("model { factory = null, initial = w.safetensors }")
    assert (job.model.factory, job.model.initial) == (None, folder / "w.safetensors")


def test_a_job_file_is_read_from_anywhere_and_in_every_encoding_of_utf8(
    write, folder, monkeypatch, tmp_path_factory
):
    (folder / "more.conf").write_text("seed = 3\n")
    path = write('include "more.conf"\n')
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    link = tmp_path_factory.mktemp("links") / "linked.conf"
    link.symlink_to(path)
    monkeypatch.chdir(folder)
    for name in ("job.conf", link):
        job = load_job(name)
        assert (job.folder, job.seed) == (folder, 3)
        assert job.train.script == folder / "client.py"


# Written out and read back


def test_a_resolved_job_has_every_key_with_its_meaning_above_it(load):
    text = render_job(load("aggregation.memory_budget = 1048576"))
    lines = [line.strip() for line in text.splitlines()]
    for key in job_keys().values():
        above = lines.index(f"# {key.meaning.splitlines()[0]}")
        assert lines[above + 1].startswith((name := key.name.rpartition(".")[2], f'"{name}"'))
    assert "memory_budget = 1 MiB" in text
    assert "streaming_per_request_timeout = 600 s" in text


SITES = 'clients { count = null, names = [ward, "b.c"], '


@pytest.mark.parametrize(
    "text",
    [
        'stop_when = "loss<0.1", patience = 3, checkpoints.keep = 2',
        "aggregation { method = multi_krum, args { byzantine = 2, selected = 4 } }",
        "aggregation { method = bulyan, args.byzantine = 1 }",
        "aggregation { method = norm_bounded_mean, clip_norm = 2 }",
        "aggregation { method = krum, clip_norm = median }",
        SITES + 'gpus = [0, "1,2"] }, aggregation.weights { ward = 2, "b.c" = 0.5 }',
        SITES + 'args { "b.c" { lr = 2 } } }, train.args = "-v --name \'x y\'"',
        "filters.down = [{ type = gaussian, args { sigma = 2 } }, svt_privacy, percentile_privacy]",
        "train.command = \"python -u -X 'dev'\"",
        "network { up { distribution = lognormal, median = 1 Mbit, sigma = 1 }, jitter = 5 ms }",
        "workflow = [{ args.key_metric = a }, { type = cyclic, args.key_metric = a }]",
    ],
)
def test_a_job_written_out_is_the_same_job(load, reloaded, text):
    job = load(text)
    assert reloaded(job) == job != load()
    assert pickle.loads(pickle.dumps(job)) == job


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
    | st.text("\"\\\n\r\t$#{}${?X}/=:,'", max_size=12)
    | st.sampled_from(["10 s", "2m", "256 MiB", "null", "true", "1", "${HOME}", '"""', "a // b"])
)
LIKELY = st.sampled_from(["auto", "all", "mean", "1", "2 MiB", "10 s", "1%", "up", "zstd", "a:b"])
JOB_KEYS = sorted(job_keys())
ANY = st.recursive(
    SCALARS | st.floats() | LIKELY,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "up", "site-1", "a b", '"a.b"']), inner)
    ),
    max_leaves=6,
)


@settings(max_examples=25)
@given(value=ANY, keys=st.lists(st.sampled_from(JOB_KEYS), min_size=8, max_size=8, unique=True))
def test_any_value_is_taken_and_written_back_or_refused_in_a_sentence(tmp_path, load, value, keys):
    path, sound = tmp_path / "value.conf", load().written()
    for key in keys:
        *sections, name = key.split(".")
        values = copy.deepcopy(sound)
        reduce(dict.__getitem__, sections, values)[name] = value
        try:
            job = make_job(values, Path("/nowhere"), "values")
        except JobError as refused:
            for problem in refused.problems:
                assert problem.state
                assert problem.allowed or problem.hint
                assert "function-" not in str(problem)
        else:
            written = value_of(job.written(), key)
            path.write_text(f"value = {render_value(written)}", encoding="utf-8")
            reduce(dict.__getitem__, sections, values)[name] = read_hocon(path).values["value"]
            assert make_job(values, Path("/nowhere"), "values") == job, key
