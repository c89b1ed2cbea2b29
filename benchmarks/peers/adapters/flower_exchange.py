"""The exchange job in Flower's simulation, which runs on Ray.

python flower_exchange.py CLIENTS ROUNDS [CPUS A CLIENT]
"""

# mypy: disable-error-code="import-not-found, untyped-decorator"

from __future__ import annotations

import sys
from collections.abc import Iterator

import torch
from flower_parts import NotedFedAvg, ray_settings
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation
from journal import note_idle, note_result
from sums import add, check, zeros

client_app = ClientApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Add the client's number, and send the weights back."""
    params = message.content["arrays"].to_torch_state_dict()
    add(params, int(context.node_config["partition-id"]) + 1)
    metrics = MetricRecord({"num-examples": 1})
    content = RecordDict({"arrays": ArrayRecord(params), "metrics": metrics})
    return Message(content=content, reply_to=message)


def server_app(clients: int, rounds: int) -> ServerApp:
    """The server's side: FedAvg over all clients, then a look at what came of it."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        note_idle()
        strategy = NotedFedAvg(
            fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients
        )
        initial = ArrayRecord(zeros())
        result = strategy.start(grid=grid, initial_arrays=initial, num_rounds=rounds)
        note_result(check(tensors(result.arrays), clients, rounds))

    return app


def tensors(arrays: ArrayRecord) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a record, one at a time."""
    for name, array in arrays.items():
        yield name, torch.from_numpy(array.numpy())


if __name__ == "__main__":
    clients, rounds = int(sys.argv[1]), int(sys.argv[2])
    run_simulation(
        server_app=server_app(clients, rounds),
        client_app=client_app,
        num_supernodes=clients,
        backend_config=ray_settings(int(sys.argv[3]) if len(sys.argv) > 3 else None),
    )
