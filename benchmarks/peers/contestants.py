"""Who takes part, with which settings, and how each is started."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
ADAPTERS = HERE / "adapters"
VENVS = HERE / ".venvs"


class Contestant(NamedTuple):
    """One program with one choice of settings, in one job.

    Attributes:
        name: what it is called on the command line and in JSON.
        peer: whose environment it runs in: one of :data:`PACKAGES`.
        label: what it is called in tables.
        adapter: the script that runs it.
        before: the script's arguments before the number of clients and of rounds.
        after: its arguments after these, with ``{clients}`` and ``{size}`` to be filled in.
    """

    name: str
    peer: str
    label: str
    adapter: str
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()

    def command(self, clients: int, rounds: int, size: int) -> list[str]:
        """The command that runs it, with a model of ``size`` bytes."""
        after = [argument.format(clients=clients, size=size) for argument in self.after]
        script = [str(python_of(self.peer)), str(ADAPTERS / self.adapter)]
        return [*script, *self.before, str(clients), str(rounds), *after]


PACKAGES = {"flstream": "flstream", "nvflare": "nvflare", "flower": "flwr", "pfl": "pfl"}
"""What each peer's package is called."""

TITLES = {"flstream": "flstream", "nvflare": "NVFlare", "flower": "Flower", "pfl": "pfl-research"}
"""What each peer calls itself."""

_FLSTREAM, _NVFLARE, _FLOWER = "flstream_run.py", "nvflare_exchange.py", "flower_exchange.py"
_SIZES = ("clients.count={clients}", "model.args.size={size}")
_NO_SCORES = "workflow.args.evaluate_every=0"

# The first of each is what the others are compared with.
EXCHANGE = (
    Contestant("flstream", "flstream", "flstream", _FLSTREAM, ("exchange",), _SIZES),
    Contestant("nvflare", "nvflare", "NVFlare, defaults", _NVFLARE),
    Contestant("nvflare-tensors", "nvflare", "NVFlare, tensors", _NVFLARE, (), ("tensors",)),
    Contestant("nvflare-offload", "nvflare", "NVFlare, least memory", _NVFLARE, (), ("offload",)),
    Contestant("flower", "flower", "Flower, defaults", _FLOWER),
    Contestant("flower-1cpu", "flower", "Flower, 1 CPU a client", _FLOWER, (), ("1",)),
)
"""The exchange job: every client gets the model, adds its number to each weight, sends it back."""

RACE = (
    Contestant("race-flstream", "flstream", "flstream", _FLSTREAM, ("virtual",), (_NO_SCORES,)),
    Contestant(
        "race-flstream-1",
        "flstream",
        "flstream, 1 worker",
        _FLSTREAM,
        ("virtual",),
        (_NO_SCORES, "clients.parallel=1"),
    ),
    Contestant("race-pfl", "pfl", "pfl-research", "pfl_race.py"),
    Contestant("race-flower", "flower", "Flower, 1 CPU a client", "flower_race.py"),
)
"""The job on digits: 1,000 clients of 18 examples, of whom each round takes 100."""


def python_of(peer: str) -> Path:
    """The interpreter of a peer's environment; flstream's is the one that runs this."""
    return Path(sys.executable) if peer == "flstream" else VENVS / peer / "bin" / "python"
