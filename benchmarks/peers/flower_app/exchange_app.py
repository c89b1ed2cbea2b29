"""The exchange job as a Flower app, which Flower and flstream run alike."""

# mypy: disable-error-code="import-not-found, misc, untyped-decorator"
# Flower is installed in an environment of its own, where types are not checked.

from __future__ import annotations

import os
from collections.abc import Iterable

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from task import add, note, note_idle, wrong_sums, zeros

client_app, server_app = ClientApp(), ServerApp()


@client_app.train()
def add_number(message: Message, context: Context) -> Message:
    """Add the client's number, and send the weights back."""
    params = message.content["arrays"].to_torch_state_dict()
    add(params, int(context.node_config["partition-id"]) + 1)
    return answer(message, ArrayRecord(params), 1)


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


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Average without evaluation, and check the final model."""
    note_idle()
    clients, rounds = int(os.environ["PEERS_CLIENTS"]), int(os.environ["PEERS_ROUNDS"])
    strategy = NotedFedAvg(
        fraction_evaluate=0.0, min_available_nodes=clients, min_train_nodes=clients
    )
    arrays = ArrayRecord(zeros())
    result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=rounds).arrays
    # One tensor at a time.
    tensors = ((name, torch.from_numpy(one.numpy())) for name, one in result.items())
    note("result", wrong=wrong_sums(tensors, clients, rounds))
