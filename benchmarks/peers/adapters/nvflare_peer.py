"""The exchange job in NVFlare's simulator.

python nvflare_peer.py CLIENTS ROUNDS [tensors | offload]

Without numbers it is the sites' training script, as jobs/exchange/client.py is for flstream.
"""

# mypy: disable-error-code="import-not-found, misc"
# NVFlare is installed in an environment of its own, where types are not checked.

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType
from nvflare.widgets.widget import Widget
from task import add, note, note_idle, wrong_sums, zeros

NAME = "exchange"


class Exchanged(torch.nn.Module):
    """The model. NVFlare makes it in its server's process, right after the imports."""

    def __init__(self) -> None:
        super().__init__()
        note_idle()
        for name, tensor in zeros().items():
            self.register_parameter(name, torch.nn.Parameter(tensor, requires_grad=False))


class RoundListener(Widget):
    """Notes when the server begins a round."""

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Pass over everything else."""
        if event_type == AppEventType.ROUND_STARTED:
            note("round", number=fl_ctx.get_prop(AppConstants.CURRENT_ROUND) + 1)


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


def serve() -> None:
    """Add the site's number to every model, and send it back."""
    import nvflare.client as flare

    flare.init()
    number = int(flare.get_site_name().removeprefix("site-"))
    while flare.is_running():
        model = flare.receive()
        # With NumPy as the exchange format, arrays come; tensors made of them share their memory.
        add({name: torch.as_tensor(value) for name, value in model.params.items()}, number)
        flare.send(flare.FLModel(params=model.params))


def main(clients: int, rounds: int, setting: str) -> None:
    """Run the job, and check the model that the server has saved.

    Args:
        clients: Number of sites.
        rounds: Number of rounds.
        setting: None takes the recipe as it comes: parameters travel as NumPy arrays. ``tensors``
            exchanges tensors; ``offload`` has the server also receive them into files, and keep as
            little freed memory as NVFlare's guide to memory management knows how to.
    """
    from nvflare.app_opt.pt.recipes import FedAvgRecipe
    from nvflare.client.config import ExchangeFormat
    from nvflare.recipe import SimEnv

    more = {"server_expected_format": ExchangeFormat.PYTORCH} if setting else {}
    if setting == "offload":
        more |= {"enable_tensor_disk_offload": True, "server_memory_gc_rounds": 1}
        os.environ["MALLOC_ARENA_MAX"] = "4"  # for the simulator's processes, which are to come
    recipe = FedAvgRecipe(
        name=NAME,
        model={"class_path": "nvflare_peer.Exchanged", "args": {}},
        min_clients=clients,
        num_rounds=rounds,
        train_script=__file__,
        **more,
    )
    # Imported by name, since the server's process knows no class of this one's __main__.
    import nvflare_peer

    recipe._job.to_server(nvflare_peer.RoundListener(), id="rounds")
    if setting == "offload":
        recipe._job.to_server(nvflare_peer.ResultsCell(), id="results_cell")
    workspace = Path("workspace").absolute()
    recipe.execute(SimEnv(num_clients=clients, workspace_root=str(workspace)))
    saved = next((workspace / NAME / "server").rglob("FL_global_model.pt"))
    state = torch.load(saved, weights_only=True, mmap=True)
    note("result", wrong=wrong_sums(state["model"].items(), clients, rounds))


if __name__ == "__main__":
    if len(sys.argv) < 3:
        serve()
    else:
        main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else "")
