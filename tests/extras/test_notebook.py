"""A recipe in a notebook: progress below the cell, then tables and charts."""

import re

MODEL = """%%writefile model.py
import torch
from torch import nn


class Net(nn.Sequential):
    def __init__(self, width=8):
        super().__init__(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 1))


def points(site):
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(site))
    return x, x.sum(1, keepdim=True)
"""
CLIENT = """%%writefile client.py
import argparse

import torch
from model import Net, points

import flstream.client as flare

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.05)
args = parser.parse_args()

flare.init()
net = Net()
optimizer = torch.optim.SGD(net.parameters(), args.lr)
x, y = points(flare.system_info()["site_index"])
while flare.is_running():
    flare.receive(into=net)
    loss = torch.nn.functional.mse_loss(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    flare.send(flare.FLModel(params=net.state_dict(), metrics={"loss": loss.item()}))
"""
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


def html(cell):
    data = [each.get("data", {}) for each in cell.outputs]
    return [each["text/html"] for each in data if "text/html" in each]


def printed(cell):
    text = "".join(each["text"] for each in cell.outputs if each.output_type == "stream")
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_a_recipe_in_a_notebook_shows_progress_tables_and_charts(tmp_path):
    import nbformat
    from nbclient import NotebookClient

    sources = [MODEL, CLIENT, RECIPE, "run", "run.metrics", INSTANCE]
    notebook = nbformat.v4.new_notebook(cells=[*map(nbformat.v4.new_code_cell, sources)])
    place = {"metadata": {"path": str(tmp_path)}}
    client = NotebookClient(notebook, timeout=180, kernel_name="python3", resources=place)
    *_, recipe, run, metrics, instance = client.execute().cells
    (frame,) = html(recipe)  # replaced in place
    assert frame.startswith("<pre")
    assert {"points", "site-2"} <= set(re.findall(r"[\w-]+", frame))
    assert "Peak memory" in printed(recipe)
    assert "finished after 3 rounds" in printed(recipe)
    (result,) = html(run)
    assert result.count("<svg") >= 2
    for text in ("server over idle", "scope=row>2</th>", "<figcaption>loss", "memory over idle"):
        assert text in result
    assert "'loss'" in metrics.outputs[0]["data"]["text/plain"]
    # The class of the model is the notebook's own.
    assert printed(instance).strip() == "finished"
