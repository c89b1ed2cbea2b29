"""The examples of the page on workflows are workflows, and its messages are those of the code."""

import inspect
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from test_troubleshooting import TEXTS, fragments

from flstream.job.workflow_code import find_workflow
from flstream.workflows.cyclic import cyclic
from flstream.workflows.fedavg import fedavg

PAGE = (Path(__file__).parents[2] / "docs" / "workflows.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
NAMES = [re.findall(r"^def (\w+)\(", block, flags=re.MULTILINE)[-1] for block in BLOCKS]
BUILT_IN = {"fedavg": fedavg, "cyclic": cyclic}
SYMPTOMS = re.findall(r"^\| `(.*?)` (?:\(.*?\) )?\|", PAGE.partition("## Troubleshooting")[2], re.M)


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_built_in_workflows_stand_there_as_they_are(name: str) -> None:
    function: Callable[..., object] = BUILT_IN[name]
    source = inspect.getsource(function)
    assert source[source.index("def ") :] in BLOCKS


@pytest.mark.parametrize("name", [name for name in NAMES if name not in BUILT_IN])
def test_every_other_example_is_a_workflow_of_its_own_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / f"{name}.py"
    path.write_text(BLOCKS[NAMES.index(name)])
    code = find_workflow(f"{path}:{name}")
    assert code.takes_args == ("(run: Run, args" in path.read_text())


def test_the_first_example_is_short() -> None:
    assert NAMES[0] == "halves"
    assert len(BLOCKS[0].splitlines()) <= 25


@pytest.mark.parametrize("symptom", SYMPTOMS)
def test_the_code_says_what_the_table_explains(symptom: str) -> None:
    for part in fragments(symptom):
        assert any(part in text for text in TEXTS), part


def test_the_table_explains_more_than_a_few() -> None:
    assert len(SYMPTOMS) > 20
