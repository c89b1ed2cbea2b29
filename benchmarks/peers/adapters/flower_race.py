"""The job on digits in Flower's simulation, with one CPU a client.

python flower_race.py CLIENTS ROUNDS
"""

# mypy: disable-error-code="import-not-found, untyped-decorator"

from __future__ import annotations

import sys

import digits
import numpy as np
from flower_parts import NotedFedAvg, ray_settings
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation
from journal import note_idle, note_result

client_app = ClientApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Train on this client's digits."""
    received = message.content["arrays"].to_numpy_ndarrays()
    weight, bias = (array.copy() for array in received)
    images, labels = digits.load().of_site(int(context.node_config["partition-id"]))
    digits.train(images, labels, weight, bias)
    metrics = MetricRecord({"num-examples": len(images)})
    content = RecordDict({"arrays": ArrayRecord([weight, bias]), "metrics": metrics})
    return Message(content=content, reply_to=message)


def server_app(clients: int, rounds: int) -> ServerApp:
    """The server's side: FedAvg over a sample of the clients, then a look at what came of it."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        note_idle()
        strategy = NotedFedAvg(
            fraction_train=digits.COHORT / clients,
            fraction_evaluate=0.0,
            min_available_nodes=clients,
        )
        initial = ArrayRecord([np.zeros((64, 10), np.float32), np.zeros(10, np.float32)])
        result = strategy.start(grid=grid, initial_arrays=initial, num_rounds=rounds)
        note_result(digits.check(*result.arrays.to_numpy_ndarrays()))

    return app


if __name__ == "__main__":
    clients, rounds = int(sys.argv[1]), int(sys.argv[2])
    run_simulation(
        server_app=server_app(clients, rounds),
        client_app=client_app,
        num_supernodes=clients,
        backend_config=ray_settings(1),
    )
