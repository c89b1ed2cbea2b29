"""Main functions of the processes that run a ServerApp: its own, and the model builder's."""

from __future__ import annotations

import logging
import socket
import sys
from pathlib import Path
from typing import Any

import msgspec

from flstream.client.seeding import seed_everything, start_seed
from flstream.compat.flower.grid import CaughtError, FirstArrays, Grid, RunOverError
from flstream.compat.flower.messages import SERVER_NODE
from flstream.compat.flower.names import load_app
from flstream.compat.flower.requests import FlowerApp
from flstream.debugging import code_failed, sentence
from flstream.errors import ModelError
from flstream.telemetry.events import default_site_names

log = logging.getLogger("flwr")


def _run_main(grid: Grid, rounds: int | None = None) -> str:
    """Call the main function of a grid's ServerApp; return why it failed, empty if it did not."""
    app = grid.app
    try:
        seed_everything(start_seed(app.seed, ""))
        serve = load_app(app.folder, app.serverapp)
        serve(grid, app.context(SERVER_NODE, rounds, node_config={}))
    except RunOverError:
        log.info("The run has ended early, as its job says")
    except (Exception, SystemExit) as error:
        if not isinstance(error, SystemExit) or error.code:
            code_failed(error)
            return f"the ServerApp failed: {sentence(error, Path(__file__))}"
    return ""


def initial_arrays(app: str, sites: int) -> dict[str, Any]:
    """Return the arrays that a ServerApp begins with, as tensors by name (``model.factory``).

    One that sends messages without any has a single number.

    Args:
        app: The app, as JSON.
        sites: Number of the job's sites.
    """
    import torch

    kind = msgspec.json.decode(app, type=FlowerApp)
    try:
        failure = _run_main(FirstArrays(kind, default_site_names(sites)))
    except CaughtError as caught:
        if caught.arrays is not None:
            return {name: array.torch() for name, array in caught.arrays.items()}
        failure = ""
    if failure:
        raise ModelError(f"{failure}; see model-builder.log")
    return {"none": torch.zeros(1)}


def serve_app(
    server: socket.socket, rounds: int, app: FlowerApp, sites: list[str], folder: str
) -> None:
    """Run a ServerApp in this process to its end.

    Args:
        server: Socket to its workflow.
        rounds: Rounds of the job.
        app: The app.
        sites: Names of the sites, in their order.
        folder: Folder of files of contents, updates and models.
    """
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    grid = Grid(app, sites)
    grid.connect(server, folder)
    failure = _run_main(grid, rounds)
    grid.end(failure and f"{failure}; see serverapp.log")
