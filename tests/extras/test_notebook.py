"""A recipe in a notebook: progress below the cell, then tables and charts."""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.extras

PAGE = (Path(__file__).parents[2] / "docs" / "python.md").read_text()
RECIPE = """
from flstream.recipe import FedAvgRecipe, SimEnv

recipe = FedAvgRecipe(
    name="points", min_clients=2, num_rounds=3, model="model:Net", train_script="client.py",
    key_metric="loss",
)
run = recipe.execute(SimEnv(num_clients=2))
"""
INSTANCE = """
import torch

class Net(torch.nn.Sequential):
    def __init__(self, width):
        super().__init__(torch.nn.Linear(4, width), torch.nn.ReLU(), torch.nn.Linear(width, 1))

other = FedAvgRecipe(min_clients=1, model=Net(8), train_script="client.py", num_rounds=1)
print(other.execute(SimEnv(num_clients=1, quiet=True)).get_status())
"""


def shown(name):
    """A file of the page, as a cell that writes it."""
    text = PAGE.split(f"```python\n# {name}\n", 1)[1].split("```", 1)[0]
    return f"%%writefile {name}\n{text}"


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    """The cells of a notebook, after they were run."""
    import nbformat
    from nbclient import NotebookClient

    folder = tmp_path_factory.mktemp("notebook")
    sources = [shown("model.py"), shown("client.py"), RECIPE, "run", "run.metrics", INSTANCE]
    notebook = nbformat.v4.new_notebook(cells=[*map(nbformat.v4.new_code_cell, sources)])
    client = NotebookClient(
        notebook, timeout=180, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    )
    return client.execute().cells


def html(cell):
    data = [each.get("data", {}) for each in cell.outputs]
    return [each["text/html"] for each in data if "text/html" in each]


def printed(cell):
    text = "".join(each["text"] for each in cell.outputs if each.output_type == "stream")
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_progress_is_shown_below_the_cell_and_replaced_in_place(cells):
    (frame,) = html(cells[2])
    assert frame.startswith("<pre")
    assert "points" in frame
    assert "site-2" in frame
    assert "Peak memory" in printed(cells[2])
    assert "finished after 3 rounds" in printed(cells[2])


def test_a_run_shows_figures_a_table_and_charts_of_metrics_and_memory(cells):
    (result,) = html(cells[3])
    assert "server over idle" in result
    assert '<th scope="row">2' in result
    assert result.count("<img") >= 2
    assert "loss over rounds" in result
    assert "Resident memory over idle" in result


def test_results_are_plain_values(cells):
    assert "'loss'" in cells[4].outputs[0]["data"]["text/plain"]


def test_an_instance_of_a_notebooks_own_class_can_be_trained(cells):
    assert printed(cells[5]).strip() == "finished"
