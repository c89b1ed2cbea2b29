"""Workflows in the job file: built in or a function in a file, with arguments of their own."""

import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from flstream.errors import UsageError
from flstream.job import Job, JobError, job_keys, load_job, render_job
from flstream.job.problems import given
from flstream.job.workflow_code import find_workflow, load_program
from flstream.workflows.registry import BUILT_IN

Write = Callable[..., Path]

RELAY = '''
from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

import legs
from flstream.job.rules import Whole
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

LIST = """
workflow = [
  { type = fedavg, args { key_metric = loss } }
  { type = cyclic, args { key_metric = loss, order = [site-2, site-1] } }
  { type = "relay.py:free", args { key_metric = loss, colour = red } }
]
"""


@pytest.fixture
def folder(folder: Path) -> Path:
    (folder / "relay.py").write_text(RELAY)
    (folder / "legs.py").write_text("USUAL = 3\n")
    return folder


def lines(path: Path, *overrides: str) -> list[str]:
    """Return the mistakes of a job file, a line each."""
    with pytest.raises(JobError) as caught:
        load_job(path, overrides)
    return [line.strip() for line in str(caught.value).splitlines()[1:]]


def written_out(job: Job, folder: Path) -> Job:
    path = folder / "resolved.conf"
    path.write_text(render_job(job))
    return load_job(path)


# What a job has


def test_a_job_has_one_stage_by_default(write: Write) -> None:
    job = load_job(write())
    [stage] = job.stages
    assert (stage.name, stage.program) == ("fedavg", "flstream.workflows.fedavg:fedavg")
    assert stage.args.evaluate_every == 1
    assert (job.key_metric, job.key_metric_mode) == ("accuracy", "max")


@pytest.mark.parametrize("named", ["relay.py:relay", "relay:relay", "./relay.py:relay"])
def test_a_function_beside_the_job_brings_its_arguments_along(
    write: Write, folder: Path, named: str
) -> None:
    job = load_job(write(f'workflow {{ type = "{named}", args.hops = "7" }}'))
    [stage] = job.stages
    assert (stage.name, stage.program) == ("relay.py:relay", f"{folder}/relay.py:relay")
    assert type(stage.args).__name__ == "RelayArgs"
    assert (stage.args.hops, stage.args.kind, stage.args.key_metric) == (7, "odd", "accuracy")
    assert job_keys(job)["workflow.args.hops"].meaning.startswith("How often the model is handed")
    assert written_out(job, folder) == job


def test_a_function_without_a_decorator_takes_arguments_as_they_are_written(
    write: Write, folder: Path
) -> None:
    text = "args { colour = red, nested { a = [1, 10 s] }, evaluate_every = 4 }"
    job = load_job(write(f'workflow {{ type = "relay.py:free", {text} }}'))
    args = job.stages[0].args
    assert (args.evaluate_every, args.colour, args.nested) == (4, "red", {"a": [1, "10 s"]})
    assert written_out(job, folder) == job


def test_a_function_of_the_run_alone_takes_the_common_arguments_and_no_other(write: Write) -> None:
    path = write('workflow { type = "relay.py:common", args.key_metric = loss }')
    assert load_job(path).key_metric == "loss"
    assert lines(path, "workflow.args.key_metirc=a", "workflow.args.zebra=1") == [
        "workflow.args.key_metirc: unknown key; did you mean workflow.args.key_metric?",
        "workflow.args.zebra: unknown key",
    ]


def test_an_installed_module_has_workflows_too(write: Write) -> None:
    [stage] = load_job(write("workflow.type = flstream.workflows.cyclic:cyclic")).stages
    assert stage.program == "flstream.workflows.cyclic:cyclic"
    assert stage.args.order == "fixed"


def test_the_type_and_its_arguments_can_be_set_on_the_command_line(write: Write) -> None:
    overrides = ["workflow.type=cyclic", "workflow.args.order=random"]
    assert load_job(write(), overrides).stages[0].args.order == "random"


def test_several_workflows_are_stages(write: Write, folder: Path) -> None:
    job = load_job(write(LIST))
    assert [stage.name for stage in job.stages] == ["fedavg", "cyclic", "relay.py:free"]
    assert job.stages[1].args.order == ["site-2", "site-1"]
    assert job.key_metric == "loss"
    assert "workflow[1].args.order" in job_keys(job)
    assert written_out(job, folder) == job
    changed = load_job(write(LIST), ["workflow[2].args.colour=blue"])
    assert changed.stages[2].args.colour == "blue"
    assert changed != job


def test_a_list_of_one_is_a_section(write: Write) -> None:
    in_a_list = load_job(write("workflow = [{ type = cyclic }]"))
    assert in_a_list == load_job(write("workflow.type = cyclic"))
    assert lines(write("workflow = [{ type = cyclic, args.ordr = 1 }]")) == [
        "workflow.args.ordr: unknown key; did you mean workflow.args.order?"
    ]


# What is wrong with it


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("workflow = 3", "workflow: given 3; must be a section { type, args }, or a list of such "
         "sections"),
        ("workflow = []", "workflow: given []; must be a section { type, args }, or a list of such "
         "sections"),
        ("workflow = [{}, 3]", "workflow[1]: given 3; must be a section { type, "
         "args.evaluate, args.evaluate_every, args.key_metric, args.key_metric_mode, "
         "args.fedprox_mu }"),
        ("workflow.args = 3", "workflow.args: given 3; must be a section { evaluate, "
         "evaluate_every, key_metric, key_metric_mode, fedprox_mu }"),
        ("workflow.args.order = random", "workflow.args.order: unknown key"),
        ("workflow.type = cyclic, order = 1", "order: unknown key; did you mean "
         "workflow.args.order?"),
        ("workflow { type = cyclic, args.order = Random }", 'workflow.args.order: given "Random"; '
         "must be one of fixed, random, random_without_same_in_a_row, or a list of sites, each of "
         "them once; did you mean random?"),
        ("workflow { type = cyclic, args.order = [site-1, site-1] }", "workflow.args.order: given "
         '["site-1", "site-1"]; must be one of fixed, random, random_without_same_in_a_row, or a '
         "list of sites, each of them once; site-1 is in it twice"),
        ("workflow { type = cyclic, args.order = [site-1, site-9] }", "workflow.args.order: given "
         '"site-9"; must be a site of the job, which are site-1 to site-8; did you mean site-8?'),
        ('workflow { type = "relay:relay", args.hops = 0 }', "workflow.args.hops: given 0; must "
         "be a whole number of at least 1"),
        ('workflow { type = "relay:relay", args.kind = all }', 'workflow.args.kind: given "all"; '
         "must be one of odd, even"),
        ('workflow { type = "relay:relay", args.share = 0 }', "workflow.args.share: given 0; "
         "must be a number above 0"),
        ('workflow { type = "relay:relay", args.hop = 1 }', "workflow.args.hop: unknown key; did "
         "you mean workflow.args.hops?"),
        ('workflow { type = "relay:free", args.copy = 1 }', "workflow.args.copy: the name of an "
         "argument; must be another name, since every section has something of that name already"),
        ('workflow { type = "relay:free", args.a = [1e999] }', "workflow.args.a: given Infinity; "
         "must be a finite number"),
    ],
)  # fmt: skip
def test_a_mistake_in_the_section_is_named(write: Write, text: str, mistake: str) -> None:
    assert lines(write(text)) == [mistake]


@pytest.mark.parametrize(
    ("code", "mistake"),
    [
        ("def other(run): ...", 'given "mine.py:mine"; must be the name of a function at the top '
         "level of {folder}/mine.py"),
        ("mine = 3", '{named}; must be a function of (run) or (run, args); '
         "mine is of the type int"),
        ("class mine: ...", '{named}; must be a function of (run) or (run, '
         "args); mine is a class"),
        ("def mine(): ...", '{named}; must be a function of (run) or (run, '
         "args); mine takes ()"),
        ("def mine(run, args, *, more): ...", '{named}; must be a function '
         "of (run) or (run, args); mine takes (run, args, *, more)"),
        ("async def mine(run): ...", '{named}; must be a function of (run) '
         "or (run, args); mine is asynchronous; write it with a plain def"),
        ("def mine(run): yield", '{named}; must be a function of (run) or '
         "(run, args); mine is a generator; return the model, and yield nothing"),
        ("\ndef fail(): raise OSError('no disk')\nfail()\ndef mine(run): ...",
         '{named}; must be in Python that can be imported; mine.py line 2 raised '
         "OSError: no disk"),
        ("raise SystemExit\ndef mine(run): ...", '{named}; must be in '
         "Python that can be imported; mine.py line 1 raised SystemExit"),
        ("import nosuch\ndef mine(run): ...", '{named}; must be in Python '
         "that can be imported; mine.py line 1 raised ModuleNotFoundError: No module named "
         "'nosuch'; install it where flstream is, or put it beside the file"),
        ("from flstream.workflows import workflow\n@workflow('mine', dict)\ndef mine(run): ...",
         '{named}, whose decorator has dict as the section of its '
         "arguments; must be a class derived from flstream.workflows.WorkflowArgs"),
        ("from flstream.workflows import workflow\n@workflow\ndef mine(run): ...",
         '{named}; must be in Python that can be imported; mine.py line 2 '
         'raised TypeError: a workflow has a name: write @workflow("mine") above its function'),
        ("def mine(run) ...", 'given "mine.py:mine"; must be Python that parses; {folder}/mine.py '
         "line 1: expected ':'"),
    ],
)  # fmt: skip
def test_code_that_is_no_workflow_is_a_mistake_of_the_type_alone(
    write: Write, folder: Path, code: str, mistake: str
) -> None:
    (folder / "mine.py").write_text(code)
    path = write('workflow { type = "mine.py:mine", args { hops = 3, zebra = 1 } }')
    # A long value is cut off in messages.
    named = given(f"{folder}/mine.py:mine")
    assert lines(path) == [f"workflow.type: {mistake.format(folder=folder, named=named)}"]


def test_a_file_or_a_module_that_is_not_there_is_a_mistake_of_the_type(
    write: Write, folder: Path
) -> None:
    allowed = f"must be {', '.join(BUILT_IN)}, path/to/file.py:function or module:function"
    assert lines(write('workflow.type = "realy.py:relay"')) == [
        f'workflow.type: given "realy.py:relay"; {allowed}; there is no {folder}/realy.py; did you '
        "mean relay.py?"
    ]
    assert lines(write('workflow.type = "json:lods"')) == [
        'workflow.type: given "json:lods"; must be the name of a function at the top level of '
        "json; did you mean loads?"
    ]


def test_stages_agree_on_what_the_best_round_is(write: Write) -> None:
    path = write(LIST)
    overrides = "workflow[1].args.key_metric=accuracy", "workflow[2].args.key_metric_mode=min"
    reason = "the best round is that of all workflows"
    assert lines(path, *overrides) == [
        f'workflow[1].args.key_metric: given "accuracy"; must be loss, as in workflow[0]; {reason}',
        f'workflow[2].args.key_metric_mode: given "min"; must be max, as in workflow[0]; {reason}',
    ]


def test_early_stopping_needs_evaluations_in_every_stage(write: Write) -> None:
    never = "workflow[1].args.evaluate=task", "workflow[1].args.evaluate_every=0"
    assert lines(write(LIST), *never, "patience=3") == [
        "patience: given 3; must be null where workflow[1].args.evaluate_every is 0, as no round "
        "is evaluated"
    ]


def test_mistakes_of_several_stages_are_all_named_at_once(write: Write) -> None:
    text = 'workflow = [{ typ = a }, { type = cyclic, args.ordr = 1 }, { type = "relay.py:rely" }]'
    found = [line.partition(";")[0] for line in lines(write(text + ", seed = -1"))]
    assert found == [
        "seed: given -1",
        "workflow[0].typ: unknown key",
        "workflow[1].args.ordr: unknown key",
        'workflow[2].type: given "relay.py:rely"',
    ]


@pytest.mark.parametrize("override", ["workflow.args.key_metric=a", "workflow[3].type=fedavg"])
def test_an_override_of_a_list_says_which_of_it_is_meant(write: Write, override: str) -> None:
    [line] = lines(write(LIST), override)
    assert "must be one of workflow[0] to workflow[2], since workflow is a list" in line


def test_an_override_of_the_only_workflow_may_have_an_index(write: Write) -> None:
    assert load_job(write(), ["workflow[0].args.key_metric=a"]).key_metric == "a"
    [line] = lines(write(), "workflow[1].args.key_metric=a")
    assert line.endswith("must be workflow, since it is not a list")


# The code


def test_a_file_is_imported_once_and_leaves_no_trace(write: Write, folder: Path) -> None:
    (folder / "legs.py").write_text("USUAL = 3\nprint('legs were imported')\n")
    before = list(sys.path)
    path = write('workflow.type = "relay.py:relay"')
    first, second = load_job(path), load_job(path)
    assert type(first.stages[0].args) is type(second.stages[0].args)
    linked = folder / "linked"
    linked.symlink_to(folder)
    assert find_workflow(f"{linked}/relay.py:relay") == find_workflow(f"{folder}/relay.py:relay")
    assert sys.path == before
    assert not {"relay", "legs"} & set(sys.modules)


def test_what_code_prints_is_not_the_output_of_the_command(
    write: Write, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "loud.py").write_text("print('loud was imported')\ndef loud(run): ...\n")
    load_job(write('workflow.type = "loud.py:loud"'))
    load_job(write('workflow.type = "loud.py:loud"'))
    assert capsys.readouterr() == ("", "loud was imported\n")


def test_jobs_of_two_folders_do_not_share_what_lies_beside_them(
    write: Write, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("other")
    for name in ("relay.py", "client.py", "model.py"):
        (other / name).write_text((folder / name).read_text())
    (other / "legs.py").write_text("USUAL = 5\n")
    path = write('workflow.type = "relay.py:relay"')
    (other / "job.conf").write_text(path.read_text())
    assert load_job(path).stages[0].args.hops == 3
    assert load_job(other / "job.conf").stages[0].args.hops == 5


def test_code_that_was_changed_is_imported_anew(write: Write, folder: Path) -> None:
    path = write('workflow.type = "mine.py:mine"')
    (folder / "mine.py").write_text("def mine(run): return 1\n")
    assert load_program(load_job(path).stages[0])("run", load_job(path).stages[0].args) == 1
    (folder / "mine.py").write_text("def mine(run): return 2\n")
    assert load_program(load_job(path).stages[0])("run", load_job(path).stages[0].args) == 2


IN_ANOTHER_PROCESS = """
import json, pickle, sys
job = pickle.loads(sys.stdin.buffer.read())
assert not {"relay", "legs"} & set(sys.modules)
from flstream.job.workflow_code import load_program
print(json.dumps([job.key_metric, *(load_program(each)("run", each.args) for each in job.stages)]))
"""


def elsewhere(job: Job) -> subprocess.CompletedProcess[bytes]:
    """Run a job's programs in a process that has imported nothing of the job's code."""
    command = [sys.executable, "-c", IN_ANOTHER_PROCESS]
    return subprocess.run(command, input=pickle.dumps(job), capture_output=True, cwd="/")


def test_a_job_reaches_a_process_that_has_not_imported_its_code(write: Write) -> None:
    text = """workflow = [
      { type = "relay.py:relay", args { hops = 7, share = 0.25 } }
      { type = "relay.py:free", args { colour = red, nested { a = [1] }, evaluate_every = 2 } }
      { type = "relay.py:common" }
    ]"""
    done = elsewhere(load_job(write(text)))
    assert done.stderr == b""
    assert json.loads(done.stdout) == [
        "accuracy",
        ["run", "RelayArgs", 7, 0.25, 3],
        ["run", 2, "red", {"a": [1]}],
        ["run"],
    ]


def test_code_that_is_gone_by_then_is_a_sentence(write: Write, folder: Path) -> None:
    job = pickle.loads(pickle.dumps(load_job(write('workflow.type = "relay.py:relay"'))))
    (folder / "relay.py").write_text("def later(run): ...\n")
    with pytest.raises(UsageError, match=r"changed while it was started: workflow.type: given .*"):
        load_program(job.stages[0])
    (folder / "relay.py").write_text(RELAY.replace("hops:", "steps:"))
    program = load_program(job.stages[0])
    with pytest.raises(UsageError, match=r"workflow.args.hops: unknown key.*start it again"):
        program("run", job.stages[0].args)


def test_nothing_stands_beside_the_step_of_a_workflow_that_has_its_own(write: Write) -> None:
    beside = "server_optimizer.type = fedadam, aggregation.method = median"
    assert lines(write(f"workflow.type = feddyn, {beside}")) == [
        f"{key}: given {found}; must be left out in feddyn; its own step counts every site alike, "
        "and is the server's"
        for key, found in (
            ("aggregation.method", '"median"'),
            ("server_optimizer.type", '"fedadam"'),
        )
    ]
    assert load_job(write(f"workflow.type = fedavg, {beside}")).aggregation.method == "median"


def test_fedper_has_to_be_given_its_patterns(write: Write) -> None:
    assert lines(write("workflow.type = fedper")) == [
        "workflow.args.personal: missing; must be a list of regular expressions, at least 1"
    ]
    [line] = lines(write('workflow { type = fedper, args { personal = ["("] } }'))
    assert line.startswith("workflow.args.personal: given")
