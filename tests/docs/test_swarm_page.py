"""The page on swarm learning shows the workflow as it is, and the defaults of its keys."""

import inspect
import re
from pathlib import Path

from flstream.workflows.swarm import SwarmArgs, swarm

PAGE = (Path(__file__).parents[2] / "docs" / "workflows" / "swarm.md").read_text()


def test_the_workflow_stands_there_as_it_is() -> None:
    source = inspect.getsource(swarm)
    (block,) = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert source[source.index("def ") :] == block


def test_the_table_of_keys_has_those_of_the_workflow_and_their_defaults() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", PAGE, flags=re.MULTILINE))
    args = SwarmArgs()
    assert rows == {
        "aggregators": "all sites" if args.aggregators is None else "",
        "start_task_timeout": f"{args.start_task_timeout:g} s",
        "progress_timeout": f"{args.progress_timeout:g} s",
    }
