"""Code of one's own that a job file names: workflows, rules, filters and trackers."""

import json
import pickle
import subprocess
import sys

import pytest

from flstream.errors import UsageError
from flstream.job import load_job
from flstream.job.filters import FilterSection
from flstream.job.stage import find_workflow
from flstream.job.values import render_job
from flstream.simulation.own_code import problems_here

RELAY = '''
from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

import legs
from flstream.job.fields import Whole
from flstream.workflows import WorkflowArgs, workflow


class RelayArgs(WorkflowArgs):
    """Arguments of relay."""

    hops: Annotated[Whole, Field(ge=1)] = legs.USUAL
    """How often the model is handed on in a round."""

    kind: Literal["odd", "even"] = "odd"
    """Which sites begin."""

    share: float = Field(default=0.5, gt=0)
    """How much of it is handed on."""


@workflow("relay", RelayArgs)
def relay(run, args):
    import legs

    return [run, type(args).__name__, args.hops, args.share, legs.USUAL]


def free(run, args):
    return [run, args.evaluate_every, args.colour, args.nested]


def common(run):
    return [run]
'''
MINE = """
class Largest:
    def __init__(self, most=1.0):
        self.most = most

    def fold(self, values, weights):
        return values.max(axis=0)


class Weighing:
    def weigh(self, gram, weights):
        return weights


class Short:
    def fold(self, values):
        return values[0]


class Value:
    weigh = 3


class Fine:
    def __init__(self, size=1):
        if size < 0:
            raise ValueError("size is negative")

    def __call__(self, values, block):
        return values


class Halves:
    def nbytes(self, dtype, count):
        return 2 * count

    def encode(self, numbers, place):
        return bytes(2 * place.count)

    def decode(self, data, place):
        return place


class Sparse(Halves):
    for_updates = True


class Turns:
    def __init__(self, step=1): ...

    def sample(self, sites, count, history):
        return sites[:count]


class Hasty:
    def sample(self, sites, count):
        return sites[:count]


class Tracker: ...


NUMBER = 3
"""
LIST = """
workflow = [
  { type = fedavg, args { key_metric = loss } }
  { type = cyclic, args { key_metric = loss, order = [site-2, site-1] } }
  { type = "relay.py:free", args { key_metric = loss, colour = red } }
]
"""
FINE = 'filters.up = [{ type = "mine.py:Fine", args.'
RELAYS = 'workflow.type = "relay.py:relay"'


@pytest.fixture(autouse=True)
def code(folder):
    (folder / "relay.py").write_text(RELAY)
    (folder / "legs.py").write_text("USUAL = 3\n")
    (folder / "mine.py").write_text(MINE)
    (folder / "broken.py").write_text("import no_such_module\nRule = 3\n")


@pytest.mark.parametrize("named", ["relay:relay", "./relay.py:relay"])
def test_a_function_beside_the_job_brings_its_arguments_along(load, reloaded, folder, named):
    job = load(f'workflow {{ type = "{named}", args.hops = "7" }}')
    [stage] = job.stages
    assert (stage.name, stage.program) == ("relay.py:relay", f"{folder}/relay.py:relay")
    assert type(stage.args).__name__ == "RelayArgs"
    assert (stage.args.hops, stage.args.kind, stage.args.key_metric) == (7, "odd", "accuracy")
    (folder / "relay.py").unlink()  # what is said of its keys is known all the same
    assert "# How often the model is handed on in a round.\n" in render_job(job)
    (folder / "relay.py").write_text(RELAY)
    assert reloaded(job) == job


def test_a_function_without_a_decorator_takes_arguments_as_they_are_written(load, reloaded):
    text = "args { colour = red, nested { a = [1, 10 s] }, evaluate_every = 4 }"
    job = load(f'workflow {{ type = "relay.py:free", {text} }}')
    args = job.stages[0].args
    assert (args.evaluate_every, args.colour, args.nested) == (4, "red", {"a": [1, "10 s"]})
    assert reloaded(job) == job


def test_an_installed_module_has_workflows_too(load):
    installed = "workflow.type = flstream.workflows.cyclic:cyclic"
    [stage] = load(installed, "workflow.args.order=random").stages
    assert stage.program == "flstream.workflows.cyclic:cyclic"
    assert stage.args.order == "random"


def test_several_workflows_are_stages_and_a_list_of_one_is_a_section(load, reloaded):
    job = load(LIST)
    assert [stage.name for stage in job.stages] == ["fedavg", "cyclic", "relay.py:free"]
    assert job.stages[1].args.order == ["site-2", "site-1"]
    assert job.key_metric == "loss"
    assert reloaded(job) == job
    changed = load(LIST, "workflow[2].args.colour=blue")
    assert changed.stages[2].args.colour == "blue"
    assert changed != job
    assert load("workflow = [{ type = cyclic }]") == load("workflow.type = cyclic")


def test_rules_filters_and_trackers_are_named_like_workflows(load, reloaded, folder):
    job = load(
        'aggregation { method = "mine.py:Largest", args.most = 2 }, '
        'filters.up = [{ type = "mine.py:Fine", args { size = 2 } }], '
        'tracking { type = "mine.py:Tracker", args.a = 1 }, '
        'clients.sampler { type = "mine.py:Turns", args.step = 2 }'
    )
    assert (job.clients.sampler.name, dict(job.clients.sampler.args)) == (
        "mine.py:Turns",
        {"step": 2},
    )
    assert job.aggregation.type == f"{folder}/mine.py:Largest"
    assert job.filters.up == [FilterSection(type=f"{folder}/mine.py:Fine", args={"size": 2})]
    assert job.tracking.place == f"{folder}/mine.py:Tracker"
    assert (job.tracking.name, dict(job.tracking.args)) == ("mine.py:Tracker", {"a": 1})
    assert reloaded(job) == job
    weighed = load('aggregation { method = "mine:Weighing", weights.site-1 = 2 }')
    assert weighed.aggregation.type == f"{folder}/mine.py:Weighing"
    board = load("tracking.type = tensorboard").tracking
    assert board.place == "flstream.tracking.tensorboard:TensorBoard"


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        ('workflow { type = "relay:relay", args.hops = 0 }', "workflow.args.hops", "at least 1"),
        ('workflow { type = "relay:relay", args.kind = a }', "workflow.args.kind", "odd, even"),
        ('workflow { type = "relay:relay", args.share = 0 }', "workflow.args.share", "above 0"),
        ('workflow { type = "relay:relay", args.hop = 1 }', "workflow.args.hop", "did you mean"),
        ('workflow { type = "relay:free", args.copy = 1 }', "workflow.args.copy", "another name"),
        ('workflow { type = "relay:free", args.a = [1e999] }', "workflow.args.a", "finite number"),
        ('workflow { type = "relay:common", args.zebra = 1 }', "workflow.args.zebra", "unknown"),
        ('workflow.type = "realy.py:relay"', "workflow.type", "did you mean relay.py?"),
        ('aggregation.method = "mine.py:Larges"', "aggregation.method", "did you mean Largest?"),
        ('filters.up = ["mine.py:Absent"]', "filters.up[0].type", "must be the name of a"),
        ('filters.up = ["other.py:Fine"]', "filters.up[0].type", "must be percentile_privacy"),
        ('clients.sampler = "mine.py:Trns"', "clients.sampler.type", "did you mean Turns?"),
        ('tracking.type = "mine.py:Trakcer"', "tracking.type", "did you mean Tracker?"),
        ('tracking.type = "theirs.py:Tracker"', "tracking.type", "there is no"),
    ],
)  # fmt: skip
def test_a_mistake_in_what_is_named_is_found_when_the_job_is_loaded(mistakes, text, key, words):
    [problem] = mistakes(text)
    assert problem.key.startswith(key)
    assert words in str(problem)


METHOD, FILTER, CODEC = "aggregation.method", "filters.up[0].type", "streaming.codecs.up[0].type"
SAMPLER = "clients.sampler.type"


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        (f'{METHOD} = "mine.py:Largest"', None, ""),
        (f'{METHOD} = "mine.py:Tracker"', METHOD, "Tracker lacks fold, weigh"),
        (f'{METHOD} = "mine.py:Short"', METHOD, "its fold takes (values)"),
        (f'{METHOD} = "mine.py:Value"', METHOD, "its weigh is not a method"),
        (f'{METHOD} = "mine.py:NUMBER"', METHOD, "it is of the type int"),
        (f'{METHOD} = "broken.py:Rule"', METHOD, "line 1 raised ModuleNot"),
        ('aggregation { method = "mine.py:Largest", args.least = 2 }', METHOD, "'least'"),
        ('tracking.type = "mine.py:NUMBER"', "tracking.type", "it is of the type int"),
        ('clients.sampler = "mine.py:Turns"', None, ""),
        ('clients.sampler = "mine.py:Hasty"', SAMPLER, "its sample takes (sites, count)"),
        (
            'clients.sampler = "mine.py:Tracker"',
            SAMPLER,
            "class with sample(sites, count, history)",
        ),
        ('clients.sampler { type = "mine.py:Turns", args.stop = 1 }', SAMPLER, "'stop'"),
        ('filters.up = ["mine.py:Fine"]', None, ""),
        ('filters.up = ["mine.py:Tracker"]', FILTER, "functions of (values, block)"),
        (FINE + "size = -1 }]", FILTER, "size is negative"),
        (FINE + "sise = 1 }]", FILTER, "raised TypeError"),
        ('streaming.codecs.up = ["mine.py:Halves"]', None, ""),
        ('streaming.codecs.up = ["mine.py:Tracker"]', CODEC, "nbytes(dtype, count), encode("),
        ('streaming.codecs.up = ["mine.py:Halves", delta, zstd]', "streaming.codecs.up[1]", "left"),
        ('streaming.codecs.down = ["mine.py:Sparse"]', "streaming.codecs.down[0]", "whole models"),
    ],
)
def test_a_class_that_does_not_fit_is_named_before_the_run(load, monkeypatch, text, key, words):
    monkeypatch.delitem(sys.modules, "mine", raising=False)  # of another test
    job = load(text)
    problems = [*problems_here(job)]
    assert [problem.key for problem in problems] == ([] if key is None else [key])
    assert words in "".join(map(str, problems))
    assert "mine" not in sys.modules


DECORATED = "from flstream.workflows import workflow\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def other(run): ...", "must be the name of a function at the top level of "),
        ("mine = 3", "must be a function of (run) or (run, args); mine is of the type int"),
        ("class mine: ...", "mine is a class"),
        ("def mine(): ...", "mine takes ()"),
        ("def mine(run, args, *, more): ...", "mine takes (run, args, *, more)"),
        ("async def mine(run): ...", "write it with a plain def"),
        ("def mine(run): yield", "return the model, and yield nothing"),
        ("\nraise OSError('full')\ndef mine(run): ...", "own.py, line 2 raised OSError: full"),
        ("raise SystemExit\ndef mine(run): ...", "own.py, line 1 raised SystemExit"),
        ("import nosuch\ndef mine(run): ...", "install it where flstream is, or put it beside"),
        (f"{DECORATED}@workflow('a', dict)\ndef mine(run): ...", "derived from flstream.workflows"),
        (f"{DECORATED}@workflow\ndef mine(run): ...", 'write @workflow("mine") above its function'),
        ("def mine(run) ...", "must be Python that parses; "),
    ],
)
def test_code_that_is_no_workflow_is_a_mistake_of_the_type_alone(mistakes, folder, text, words):
    (folder / "own.py").write_text(text)
    [problem] = mistakes('workflow { type = "own.py:mine", args { hops = 3, zebra = 1 } }')
    assert problem.key == "workflow.type"
    assert words in str(problem)


# How it is imported


def test_a_file_is_imported_once_and_leaves_no_trace(load, folder, capsys):
    (folder / "legs.py").write_text("USUAL = 3\nprint('legs were imported')\n")
    before = list(sys.path)
    first, second = load(RELAYS), load(RELAYS)
    assert type(first.stages[0].args) is type(second.stages[0].args)
    linked = folder / "linked"
    linked.symlink_to(folder)
    assert find_workflow(f"{linked}/relay.py:relay") == find_workflow(f"{folder}/relay.py:relay")
    assert sys.path == before
    assert not {"relay", "legs"} & set(sys.modules)
    # What it prints is not the output of the command.
    assert capsys.readouterr() == ("", "legs were imported\n")


def test_jobs_of_two_folders_do_not_share_what_lies_beside_them(write, folder, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    write(RELAYS)
    for path in folder.iterdir():
        (other / path.name).write_text(path.read_text())
    (other / "legs.py").write_text("USUAL = 5\n")
    assert [load_job(each / "job.conf").stages[0].args.hops for each in (folder, other)] == [3, 5]


IN_ANOTHER_PROCESS = """
import json, pickle, sys
job = pickle.loads(sys.stdin.buffer.read())
assert not {"relay", "legs"} & set(sys.modules)
print(json.dumps([job.key_metric, *(each.load_program()("run") for each in job.stages)]))
"""


def test_a_job_reaches_a_process_that_has_not_imported_its_code(load):
    text = """workflow = [
      { type = "relay.py:relay", args { hops = 7, share = 0.25 } }
      { type = "relay.py:free", args { colour = red, nested { a = [1] }, evaluate_every = 2 } }
      { type = "relay.py:common" }
    ]"""
    command = [sys.executable, "-c", IN_ANOTHER_PROCESS]
    job = pickle.dumps(load(text))
    done = subprocess.run(command, input=job, capture_output=True, cwd="/")
    assert done.stderr == b""
    assert json.loads(done.stdout) == [
        "accuracy",
        ["run", "RelayArgs", 7, 0.25, 3],
        ["run", 2, "red", {"a": [1]}],
        ["run"],
    ]


def test_code_that_was_changed_is_imported_anew_or_refused(load, folder):
    job = pickle.loads(pickle.dumps(load(RELAYS)))
    for number in (1, 2):
        (folder / "own.py").write_text(f"def mine(run): return {number}\n")
        [stage] = load('workflow.type = "own.py:mine"').stages
        assert stage.load_program()("run") == number
    (folder / "relay.py").write_text("def later(run): ...\n")
    with pytest.raises(UsageError, match=r"changed while it was started: workflow.type: given .*"):
        job.stages[0].load_program()
    (folder / "relay.py").write_text(RELAY.replace("hops:", "steps:"))
    with pytest.raises(UsageError, match=r"workflow.args.hops: unknown key.*start it again"):
        job.stages[0].load_program()
