"""Either job in Flower's simulation, which runs on Ray.

python flower_peer.py CLIENTS ROUNDS exchange|digits [CPUS A CLIENT]
"""

# mypy: disable-error-code="import-not-found, misc, untyped-decorator"
# Flower is installed in an environment of its own, where types are not checked.

from __future__ import annotations

import os
import sys

import numpy as np
from exchange_app import NotedFedAvg, answer, client_app, server_app
from flwr.app import ArrayRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation
from task import COHORT, note_digits, note_idle, site_digits, train

digits_client = ClientApp()


@digits_client.train()
def train_digits(message: Message, context: Context) -> Message:
    """Train on this client's digits."""
    weight, bias = (array.copy() for array in message.content["arrays"].to_numpy_ndarrays())
    images, labels = site_digits(int(context.node_config["partition-id"]))
    train(images, labels, weight, bias)
    return answer(message, ArrayRecord([weight, bias]), len(images))


def digits_server(clients: int, rounds: int) -> ServerApp:
    """Return the server's side of the race: FedAvg without evaluation."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        note_idle()
        initial = ArrayRecord([np.zeros((64, 10), np.float32), np.zeros(10, np.float32)])
        strategy = NotedFedAvg(
            fraction_evaluate=0.0, min_available_nodes=clients, fraction_train=COHORT / clients
        )
        result = strategy.start(grid=grid, initial_arrays=initial, num_rounds=rounds).arrays
        note_digits(*result.to_numpy_ndarrays())

    return app


if __name__ == "__main__":
    clients, rounds, is_exchange = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "exchange"
    backend: dict[str, dict[str, object]] = {"init_args": {"_temp_dir": os.environ["TMPDIR"]}}
    if len(sys.argv) > 4:
        backend["client_resources"] = {"num_cpus": int(sys.argv[4]), "num_gpus": 0}
    run_simulation(
        server_app=server_app if is_exchange else digits_server(clients, rounds),
        client_app=client_app if is_exchange else digits_client,
        num_supernodes=clients,
        backend_config=backend,
    )
