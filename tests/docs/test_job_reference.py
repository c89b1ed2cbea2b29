"""The reference page of the job file is the one that its definitions give."""

from pathlib import Path

import pytest

from flstream.job import job_keys, load_job
from flstream.job.reference import EXAMPLE, render_reference
from flstream.job.workflow_args import WorkflowArgs
from flstream.job.workflow_code import built_in_args
from flstream.workflows.registry import BUILT_IN

PAGE = Path(__file__).parents[2] / "docs" / "job.md"


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == render_reference(), "docs/job.md is out of date; run: make docs"


def test_every_key_has_an_entry_with_its_rule_and_its_meaning() -> None:
    text = render_reference()
    for key in job_keys().values():
        entry = text.partition(f"### `{key.name}`\n")[2].partition("\n### ")[0]
        assert key.allowed in entry, key.name
        assert key.meaning in entry, key.name


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_argument_of_every_built_in_workflow_has_an_entry(name: str) -> None:
    text = render_reference()
    for field, info in built_in_args(name).model_fields.items():
        assert info.description
        part = text
        if field not in WorkflowArgs.model_fields:
            # Two workflows may have an argument of the same name.
            part = text.partition(f"## `workflow.args` of {name}\n")[2].partition("\n## ")[0]
        assert part.count(f"### `workflow.args.{field}`\n") == 1
        assert info.description in text


def test_the_example_loads(tmp_path: Path) -> None:
    (tmp_path / "job.conf").write_text(EXAMPLE)
    (tmp_path / "client.py").write_text("")
    (tmp_path / "model.py").write_text("Net = dict\n")
    job = load_job(tmp_path / "job.conf")
    assert (job.clients.cohort_size, job.clients.min_updates) == (4, 3)
    assert job.checkpoints.keep == 3
