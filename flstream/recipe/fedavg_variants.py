"""Recipes of federated averaging with one thing more, with NVFlare's arguments."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from flstream.errors import UsageError
from flstream.recipe.nvflare_names import fedavgm_keys
from flstream.recipe.recipes import FedAvgRecipe


class FedProxRecipe(FedAvgRecipe):
    """FedProx (Li et al. 2020, arXiv:1812.06127): see :class:`FedAvgRecipe`.

    Args:
        fedprox_mu: Weight of the proximal term, 0 or more. A script finds it in the received
            model's ``meta["fedprox_mu"]``, and ``flare.proximal_term(net)`` takes it from there.
        **arguments: As of :class:`FedAvgRecipe`.

    Raises:
        UsageError: ``fedprox_mu`` is no such number.
    """

    def __init__(self, *, fedprox_mu: float = 0.01, **arguments: Any) -> None:
        is_number = isinstance(fedprox_mu, int | float) and not isinstance(fedprox_mu, bool)
        if not (is_number and 0 <= fedprox_mu < math.inf):
            raise UsageError(
                f"FedProxRecipe: fedprox_mu is {fedprox_mu!r}; it must be a number of at least 0"
            )
        super().__init__(**{"name": "fedprox", **arguments})
        self.job.set({"workflow.args.fedprox_mu": fedprox_mu})


class FedOptRecipe(FedAvgRecipe):
    """Federated averaging with an optimizer on the server: see :class:`FedAvgRecipe`.

    Reddi et al. 2021 (arXiv:2003.00295) call it FedOpt. Torch's SGD is what ``fedavgm`` computes;
    other optimizers are keys of ``server_optimizer``, which ``config`` takes.

    Args:
        optimizer_args: ``{"path": "torch.optim.SGD", "args": {"lr": 1.0, "momentum": 0.6}}``, or
            its ``args`` alone.
        lr_scheduler_args: None: the server's learning rate is one number.
        **arguments: As of :class:`FedAvgRecipe`.

    Raises:
        UsageError: The optimizer or a schedule has no counterpart.
    """

    def __init__(
        self,
        *,
        optimizer_args: Mapping[str, Any],
        lr_scheduler_args: Mapping[str, Any] | None = None,
        **arguments: Any,
    ) -> None:
        keys = fedavgm_keys(optimizer_args)
        if isinstance(keys, str):
            raise UsageError(
                f"FedOptRecipe: optimizer_args has no counterpart: {keys}; give lr and momentum of "
                'torch.optim.SGD, or FedAvgRecipe config={"server_optimizer.type": "fedadam"}'
            )
        if lr_scheduler_args:
            raise UsageError(
                "FedOptRecipe: lr_scheduler_args has no counterpart, since "
                "server_optimizer.learning_rate is one number; leave it out"
            )
        super().__init__(**{"name": "fedopt", **arguments})
        self.job.set(keys)
