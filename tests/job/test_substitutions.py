"""Each `${X}` has the value that X has after all overrides, whatever the order of the keys."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flstream.job import JobError, load_job, render_job
from flstream.job.hocon import parse_value, read_hocon


def parsed(key, text):
    """An override as the loading of a job file parses it."""
    value, problems = parse_value(text)
    assert not problems
    return key, value


@pytest.mark.parametrize(
    ("text", "overrides", "expected"),
    [
        ("split_seed = ${seed}", ["seed=5"], {"split_seed": 5}),
        ("split_seed = ${seed}", ["seed=5", "seed=6"], {"split_seed": 6}),
        ("a = ${train.args.b}, b = ${seed}", ["seed=5"], {"a": 5, "b": 5}),
        ("a = ${train.args.b}, b = 1", ["train.args.b=${seed}"], {"a": 7, "b": 7}),
        ('a = ${train.args.b}, b = "x-"${seed}-y', ["seed=5"], {"a": "x-5-y", "b": "x-5-y"}),
        ("a = ${?NO_SUCH}, b = [${?NO_SUCH}, ${seed}]", ["seed=5"], {"b": [5]}),
        ("a = ${stop_when}", ["stop_when=loss < 1"], {"a": "loss < 1"}),
        ("a = ${IN_ENVIRONMENT}", ["seed=${IN_ENVIRONMENT}"], {"a": "9"}),
        # An override that refers to what it replaces, or to nothing.
        ("a = 1", ["train.args.a=${train.args.a}2"], {"a": "12"}),
        ("a = 1", ["train.args.a=${?NO_SUCH}"], {"a": 1}),
        # Objects: what an override replaces is not read, what it changes is seen elsewhere.
        ("a = ${NO_SUCH} { b = ${train.args.a} }", ["train.args={c = ${seed}}"], {"c": 7}),
        ("a = 1", ["train.args=${model.args}"], {"x": 1, "y": 7}),
        ("a = ${model.args}", ["model.args.x=2"], {"a": {"x": 2, "y": 7}}),
        ("a = ${model.args} { z = 3 }", ["model.args.x=2"], {"a": {"x": 2, "y": 7, "z": 3}}),
        (
            "a = ${model.args}, b = ${train.args.a.x}",
            ["train.args.a.x=4", "seed=8"],
            {"a": {"x": 4, "y": 8}, "b": 4},
        ),
        ("a { b = ${train.args.a.c}, c = 1 }", ["train.args.a.c=2"], {"a": {"b": 2, "c": 2}}),
        ("a = ${stop_when}", ["stop_when=null"], {"a": None}),
    ],
)
def test_a_substitution_has_what_its_key_has_after_all_overrides(
    load, monkeypatch, text, overrides, expected
):
    monkeypatch.setenv("IN_ENVIRONMENT", "9")
    monkeypatch.delenv("NO_SUCH", raising=False)
    base = "model.args { x = 1, y = ${seed} }, seed = 7"
    assert load(f"{base}, train.args {{ {text} }}", *overrides).train.args == expected


def test_an_included_file_and_its_includer_see_the_overrides(write, folder):
    (folder / "more.conf").write_text("train.args { a = ${seed}, b = ${rounds} }\nseed = 1")
    path = write('include "more.conf"\nmodel.args.c = ${train.args.a}')
    job = load_job(path, ["seed=5", "rounds=3"])
    assert (job.train.args, job.model.args) == ({"a": 5, "b": 3}, {"c": 5})


def test_a_workflow_of_a_list_is_changed_by_its_index(write):
    path = write("base = { type = cyclic }, workflow = [${base}, { type = fedavg }]")
    stages = read_hocon(path, [parsed("workflow[0].args.order", "${name}"), parsed("name", "x")])
    assert stages.values["workflow"] == [
        {"type": "cyclic", "args": {"order": "x"}},
        {"type": "fedavg"},
    ]
    path = write("stages = [{ type = fedavg }, {}], workflow = ${stages}")
    for key, allowed in (
        ("workflow[2].args.x", "one of workflow[0] to workflow[1], since workflow is a list"),
        ("workflow.args", "one of workflow[0] to workflow[1], since workflow is a list"),
        ("seed[1].x", "seed, since it is not a list"),
        ("seed[0]", "seed, since it is not a list"),
    ):
        assert allowed in str(read_hocon(path, [parsed(key, "1")]).problems)
    assert read_hocon(path, [parsed("workflow[1].type", "x")]).values["workflow"][1]["type"] == "x"
    path = write("stages = [{ args.key_metric = ${name} }, {}], workflow = ${stages}")
    changes = [parsed("workflow[1].type", "x"), parsed("name", "later")]
    assert read_hocon(path, changes).values["workflow"] == [
        {"args": {"key_metric": "later"}},
        {"type": "x"},
    ]


def test_an_override_of_an_argument_keeps_the_type_that_its_name_alone_stands_for(write):
    text = "workflow = [fedavg, cyclic], server_optimizer = fedadam, filters.up = [gaussian]"
    changes = ["workflow[1].args.order=random", "server_optimizer.args.tau=0.5"]
    job = load_job(write(text), [*changes, "filters.up[0].args.sigma=2"])
    assert [stage.type for stage in job.stages] == ["fedavg", "cyclic"]
    assert job.stages[1].args.order == "random"
    assert (job.server_optimizer.type, job.server_optimizer.args.tau) == ("fedadam", 0.5)
    assert list(map(str, job.filters.up)) == ["gaussian (sigma = 2.0)"]
    [spec] = load_job(write(text), ["filters.up[0].args.sigma=${rounds}"]).filters.up
    assert str(spec) == "gaussian (sigma = 10.0)"
    listed = write("codec = zstd, streaming.codecs.up = [int8, shuffle]")
    with pytest.raises(JobError, match="codec: unknown key") as caught:
        load_job(listed, ["streaming.codecs.up[1]=${codec}"])
    assert len(caught.value.problems) == 1
    job = load_job(write("workflow = cyclic"), ["workflow.args.evaluate_every=2"])
    assert (job.stages[0].type, job.stages[0].args.evaluate_every) == ("cyclic", 2)
    job = load_job(write("aggregation = krum"), ["aggregation.args.byzantine=1"])
    assert (job.aggregation.type, job.aggregation.args.byzantine) == ("krum", 1)


def test_the_resolved_job_has_the_values_written_out(write, folder):
    job = load_job(write("train.args.split_seed = ${seed}"), ["seed=5"])
    (folder / "resolved.conf").write_text(render_job(job))
    assert load_job(folder / "resolved.conf", ["seed=6"]).train.args == {"split_seed": 5}


def test_a_name_that_nothing_sets_is_named_with_its_key_also_in_an_override(write):
    with pytest.raises(JobError) as caught:
        load_job(write("train.args.a = ${NO_A} { b = 1 }"), ["model.args.c=[a${NO_C}]", "seed=-1"])
    found = {problem.key: problem.state for problem in caught.value.problems}
    assert found["train.args.a"].startswith("${NO_A} is set neither")
    assert found["model.args.c"].startswith("${NO_C} is set neither")
    assert found["seed"] == "given -1"


@pytest.mark.parametrize("overrides", [["seed=${rounds}", "rounds=${seed}"], ["seed=${clients.x}"]])
def test_a_cycle_through_overrides_is_a_mistake(write, overrides):
    with pytest.raises(JobError, match="Check for cycles"):
        load_job(write("clients.x = ${seed}"), overrides)


KEYS = ("a", "b.c", "b.d", "e")
PLACES = st.integers(0, len(KEYS) - 1)
# A number below 4 stands for the key of that number.
NUMBERS = st.integers(0, 7)


@given(
    file=st.lists(NUMBERS, min_size=len(KEYS), max_size=len(KEYS)),
    overrides=st.lists(st.tuples(PLACES, NUMBERS), max_size=4),
)
def test_overrides_are_as_good_as_the_same_lines_at_the_end_of_the_file(tmp_path, file, overrides):
    def line(place, number):
        return KEYS[place], f"${{{KEYS[number]}}}" if number < len(KEYS) else str(number)

    path = tmp_path / "job.conf"
    lines = [line(*each) for each in enumerate(file)]
    changes = [line(*each) for each in overrides]
    path.write_text("".join(f"{key} = {value}\n" for key, value in lines))
    overridden = read_hocon(path, [parsed(*each) for each in changes])
    path.write_text("".join(f"{key} = {value}\n" for key, value in [*lines, *changes]))
    whole = read_hocon(path)
    assert overridden.values == whole.values
    assert bool(overridden.problems) == bool(whole.problems)
