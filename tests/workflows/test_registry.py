"""The built-in workflows are defined and explained."""

from pathlib import Path

import pytest

from flstream.job.stage import DEFINITION, WorkflowArgs, find_workflow
from flstream.workflows.registry import BUILT_IN

REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "job.md"


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_built_in_workflow_is_defined_under_its_name_and_explains_its_arguments(name):
    code = find_workflow(name)
    assert (code.function.__name__, getattr(code.function, DEFINITION)) == (name, code.args)
    assert code.function.__doc__
    assert code.takes_args or code.args is WorkflowArgs
    text = REFERENCE.read_text()
    for field in code.args.model_fields:
        assert code.args.meaning_of(field)
        assert f"args.{field}`** (" in text
        assert " ".join(code.args.meaning_of(field).split()) in text
