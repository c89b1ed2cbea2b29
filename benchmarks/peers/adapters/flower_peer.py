"""Either job in Flower's simulation, which runs on Ray.

python flower_peer.py CLIENTS ROUNDS exchange|digits [CPUS A CLIENT]
"""

# mypy: disable-error-code="import-not-found, misc, untyped-decorator"
# Flower is installed in an environment of its own, where types are not checked.

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from task import (
    COHORT,
    add,
    note,
    note_digits,
    note_idle,
    site_digits,
    train,
    wrong_sums,
    zeros,
)

exchange_client, digits_client = ClientApp(), ClientApp()


@exchange_client.train()
def add_number(message: Message, context: Context) -> Message:
    """Add the client's number, and send the weights back."""
    import torch  # noqa: F401  # without which Flower's record refuses, in an actor's process

    params = message.content["arrays"].to_torch_state_dict()
    add(params, int(context.node_config["partition-id"]) + 1)
    return answer(message, ArrayRecord(params), 1)


@digits_client.train()
def train_digits(message: Message, context: Context) -> Message:
    """Train on this client's digits."""
    weight, bias = (array.copy() for array in message.content["arrays"].to_numpy_ndarrays())
    images, labels = site_digits(int(context.node_config["partition-id"]))
    train(images, labels, weight, bias)
    return answer(message, ArrayRecord([weight, bias]), len(images))


def answer(message: Message, arrays: ArrayRecord, examples: int) -> Message:
    """Reply with a client's weights."""
    metrics = MetricRecord({"num-examples": examples})
    return Message(content=RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


class NotedFedAvg(FedAvg):
    """FedAvg that notes when it begins a round."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Note the time, and continue as usual."""
        note("round", number=server_round)
        messages: Iterable[Message] = super().configure_train(server_round, arrays, config, grid)
        return messages


def server_app(clients: int, rounds: int, is_exchange: bool) -> ServerApp:
    """Return the server's side: FedAvg without evaluation, then a check of the final model."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        note_idle()
        if is_exchange:
            initial = ArrayRecord(zeros())
            cohort: dict[str, float] = {"min_train_nodes": clients}
        else:
            initial = ArrayRecord([np.zeros((64, 10), np.float32), np.zeros(10, np.float32)])
            cohort = {"fraction_train": COHORT / clients}
        strategy = NotedFedAvg(fraction_evaluate=0.0, min_available_nodes=clients, **cohort)
        result = strategy.start(grid=grid, initial_arrays=initial, num_rounds=rounds).arrays
        if is_exchange:
            # One tensor at a time.
            tensors = ((name, torch.from_numpy(one.numpy())) for name, one in result.items())
            note("result", wrong=wrong_sums(tensors, clients, rounds))
        else:
            note_digits(*result.to_numpy_ndarrays())

    return app


if __name__ == "__main__":
    clients, rounds, is_exchange = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "exchange"
    backend: dict[str, dict[str, object]] = {"init_args": {"_temp_dir": os.environ["TMPDIR"]}}
    if len(sys.argv) > 4:
        backend["client_resources"] = {"num_cpus": int(sys.argv[4]), "num_gpus": 0}
    run_simulation(
        server_app=server_app(clients, rounds, is_exchange),
        client_app=exchange_client if is_exchange else digits_client,
        num_supernodes=clients,
        backend_config=backend,
    )
