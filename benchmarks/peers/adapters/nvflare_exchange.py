"""The exchange job in NVFlare's simulator.

python nvflare_exchange.py CLIENTS ROUNDS [tensors | offload]
"""

# mypy: disable-error-code="import-not-found, misc"

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from journal import note_result
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_context import FLContext
from nvflare.app_opt.pt.recipes import FedAvgRecipe
from nvflare.client.config import ExchangeFormat
from nvflare.recipe import SimEnv
from nvflare.widgets.widget import Widget
from nvflare_parts import RoundListener
from sums import check

NAME = "exchange"


class ResultsCell(Widget):
    """Makes disk offload take effect in the simulator of NVFlare 2.9.0; the setting alone does not.

    FedAvg turns it on in the cell that the server's engine has. That has to be the one to which
    clients send results: a deployed job's process makes it so (``runner_process.py``), the
    simulator leaves the engine with the server's own, which never receives a tensor.
    """

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Give the engine the job's cell before FedAvg runs, as a deployed job's process does."""
        if event_type == EventType.START_RUN:
            engine = fl_ctx.get_engine()
            engine.set_cell(engine.server.job_cell)


def main(clients: int, rounds: int, setting: str) -> None:
    """Run the job, and check the model that the server has saved.

    Args:
        clients: number of sites.
        rounds: number of rounds.
        setting: none takes the recipe as it comes: parameters travel as NumPy arrays. ``tensors``
            exchanges tensors; ``offload`` has the server also receive them into files, and keep as
            little freed memory as NVFlare's guide to memory management knows how to.
    """
    more = {"server_expected_format": ExchangeFormat.PYTORCH} if setting else {}
    if setting == "offload":
        more |= {"enable_tensor_disk_offload": True, "server_memory_gc_rounds": 1}
        os.environ["MALLOC_ARENA_MAX"] = "4"  # for the simulator's processes, which are to come
    recipe = FedAvgRecipe(
        name=NAME,
        model={"class_path": "nvflare_parts.Exchanged", "args": {}},
        min_clients=clients,
        num_rounds=rounds,
        train_script=str(Path(__file__).with_name("nvflare_client.py")),
        **more,
    )
    recipe._job.to_server(RoundListener(), id="rounds")
    if setting == "offload":
        recipe._job.to_server(ResultsCell(), id="results_cell")
    workspace = Path("workspace").absolute()
    recipe.execute(SimEnv(num_clients=clients, workspace_root=str(workspace)))
    saved = next((workspace / NAME / "server").rglob("FL_global_model.pt"))
    state = torch.load(saved, weights_only=True, mmap=True)
    note_result(check(state["model"].items(), clients, rounds))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else "")
