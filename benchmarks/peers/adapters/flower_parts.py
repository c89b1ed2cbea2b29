"""What both of Flower's jobs share: a strategy that notes rounds, and Ray's settings."""

# mypy: disable-error-code="import-not-found, misc"
# Flower is installed in an environment of its own, where types are not checked.

from __future__ import annotations

import os
from collections.abc import Iterable

from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from journal import note_round


class NotedFedAvg(FedAvg):
    """FedAvg that notes when it begins a round, and does not evaluate."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Note the time, and go on as usual."""
        note_round(server_round)
        messages: Iterable[Message] = super().configure_train(server_round, arrays, config, grid)
        return messages


def ray_settings(cpus_a_client: int | None) -> dict[str, dict[str, object]]:
    """The backend's settings: Flower's own but for where Ray puts its files, and for the CPUs."""
    settings: dict[str, dict[str, object]] = {"init_args": {"_temp_dir": os.environ["TMPDIR"]}}
    if cpus_a_client is not None:
        settings["client_resources"] = {"num_cpus": cpus_a_client, "num_gpus": 0}
    return settings
