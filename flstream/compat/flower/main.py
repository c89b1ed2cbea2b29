"""Main functions of the processes that run a ServerApp: its own, and the model builder's."""

from __future__ import annotations

import json
import logging
import socket
import sys
from pathlib import Path
from typing import Any

import msgspec

from flstream.client.seeding import seed_everything, start_seed
from flstream.compat.flower import names, requests
from flstream.compat.flower.grid import CaughtError, FirstArrays, Grid, RunOverError
from flstream.compat.flower.messages import SERVER_NODE, Context
from flstream.debugging import code_failed, sentence
from flstream.errors import ModelError

log = logging.getLogger("flwr")


def _failed(error: BaseException) -> str:
    return f"the ServerApp failed: {sentence(error, Path(__file__))}"


def run_main(grid: Grid, place: requests.AppPlace) -> None:
    """Call the main function of a ServerApp."""
    seed_everything(start_seed(place.seed, ""))
    app = names.load_app(place.folder, place.component)
    context = Context(grid.run_id, SERVER_NODE, {}, run_config=json.loads(place.config))
    app(grid, context)


def initial_arrays(**place: Any) -> dict[str, Any]:
    """Return the arrays that a ServerApp begins with, as tensors by name (``model.factory``).

    One that sends messages without any has a single number.
    """
    import torch

    app = msgspec.convert(place, requests.AppPlace)
    try:
        run_main(FirstArrays(app), app)
    except CaughtError as caught:
        if caught.arrays is not None:
            return {name: array.torch() for name, array in caught.arrays.items()}
    except (Exception, SystemExit) as error:
        if isinstance(error, SystemExit) and not error.code:
            return {"none": torch.zeros(1)}
        code_failed(error)
        raise ModelError(f"{_failed(error)}; see model-builder.log") from error
    return {"none": torch.zeros(1)}


def serve_app(server: socket.socket, place: requests.AppPlace) -> None:
    """Run a ServerApp in this process to its end."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    grid = Grid(server, place)
    try:
        run_main(grid, place)
    except RunOverError:
        log.info("The run has ended early, as its job says")
    except BaseException as error:
        if isinstance(error, SystemExit) and not error.code:
            grid.end()
            return
        code_failed(error)
        grid.end(f"{_failed(error)}; see serverapp.log")
        return
    grid.end()
