"""Recipes of federated averaging, with NVFlare's arguments."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flstream.errors import UsageError
from flstream.job.aggregation_method import BuiltInMethod
from flstream.job.problems import did_you_mean
from flstream.recipe.checks import checked, notice
from flstream.recipe.components import (
    ExchangeFormat,
    FedAvg,
    FrameworkType,
    ScriptRunner,
    TransferType,
)
from flstream.recipe.fed_job import FedJob
from flstream.recipe.nvflare_names import UNNEEDED_ARGUMENTS, fedavgm_keys
from flstream.recipe.recipes import Recipe


class FedAvgRecipe(Recipe):
    """Federated averaging (McMahan et al. 2017, arXiv:1602.05629).

    Args:
        name: Name of the job, and of its run directories.
        model: A torch module, whose weights are the initial ones; a dict of tensors;
            ``{"class_path": "model.Net", "args": {...}}``, ``"module:callable"`` or a function of a
            file, which each run calls in a process of its own.
        initial_ckpt: Path of a file with initial weights.
        min_clients: Number of sites that a round samples, as in NVFlare; None for all of them.
        num_rounds: Number of rounds.
        train_script: Path of the script that each site runs, from the working folder or from the
            folder of the program itself.
        train_args: Its arguments, as on a shell; or values by name.
        launch_external_process: Whether ``command`` starts it.
        command: Launcher, such as ``torchrun --nproc_per_node=2``.
        server_expected_format: Accepted for NVFlare's sake: tensors travel as bytes.
        params_transfer_type: See :class:`~flstream.recipe.components.TransferType`.
        aggregator: Name of a method that comes with flstream, such as ``median``; None for the
            mean. One of your own is ``aggregation.method`` in ``config``.
        per_site_config: See :meth:`~flstream.recipe.recipes.Recipe.set_per_site_config`.
        key_metric: Metric that decides which round is the best. Its smallest value is the best if
            ``stop_cond`` has it below a number, or its name says loss or perplexity.
        stop_cond: Condition that ends the job early, such as ``accuracy >= 0.97``.
        patience: Number of evaluations without a new best one that ends the job early.
        exclude_vars: Regular expression, or several, of tensors that keep their value.
        aggregation_weights: Factors of sites' weights in the mean, by site.
        initial_model: An older spelling of ``model``.
        framework: What the script computes with; with NumPy it receives arrays.
        config: Further keys of the job, by dotted name, such as ``{"seed": 7}``.
        **others: Arguments of NVFlare's that are not needed here, which a line says.

    Raises:
        UsageError: An argument is unknown, or has no counterpart.
    """

    @checked
    def __init__(
        self,
        *,
        name: str = "fedavg",
        model: Any = None,
        initial_ckpt: str | None = None,
        min_clients: int | None = None,
        num_rounds: int = 2,
        train_script: str | Path | None = None,
        train_args: str | Mapping[str, Any] = "",
        launch_external_process: bool = False,
        command: str = "python3 -u",
        server_expected_format: ExchangeFormat = ExchangeFormat.NUMPY,
        params_transfer_type: TransferType = TransferType.FULL,
        aggregator: BuiltInMethod | None = None,
        per_site_config: Mapping[str, Mapping[str, Any]] | None = None,
        key_metric: str | None = None,
        stop_cond: str | None = None,
        patience: int | None = None,
        exclude_vars: str | Sequence[str] | None = None,
        aggregation_weights: Mapping[str, float] | None = None,
        initial_model: Any = None,
        framework: FrameworkType = FrameworkType.PYTORCH,
        config: Mapping[str, Any] | None = None,
        **others: Any,
    ) -> None:
        super().__init__(FedJob(name))
        pass_over(type(self).__name__, others)
        if model is not None and initial_model is not None:
            raise UsageError("model and initial_model are both given; leave out initial_model")
        job = self.job
        job.to_server(
            FedAvg(
                num_clients=min_clients,
                num_rounds=num_rounds,
                key_metric=key_metric,
                stop_cond=stop_cond,
                patience=patience,
                exclude_vars=exclude_vars,
                aggregation_weights=aggregation_weights,
            )
        )
        job.set({"aggregation.method": aggregator})
        job.set_model(initial_model if model is None else model, initial_ckpt)
        if train_script is not None:
            is_text = isinstance(train_args, str)
            job.to_clients(
                ScriptRunner(
                    str(train_script),
                    train_args if isinstance(train_args, str) else "",
                    launch_external_process=launch_external_process,
                    command=command,
                    framework=framework,
                    server_expected_format=server_expected_format,
                    params_transfer_type=params_transfer_type,
                )
            )
            job.set({"train.args": None if is_text else train_args})
        elif train_args or launch_external_process:
            raise UsageError("train_args or a launcher is given without train_script; give it, too")
        self.set_per_site_config(per_site_config or {})
        job.configure(config or {})


class NumpyFedAvgRecipe(FedAvgRecipe):
    """Federated averaging of NumPy arrays: see :class:`FedAvgRecipe`.

    Args:
        model: An array or a nested list, which is the array ``numpy_key``; or a dict of arrays.
        **arguments: As of :class:`FedAvgRecipe`.
    """

    def __init__(self, *, model: Any = None, **arguments: Any) -> None:
        super().__init__(model=model, **{"framework": FrameworkType.NUMPY, **arguments})


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
                "server_optimizer.args.learning_rate is one number; leave it out"
            )
        super().__init__(**{"name": "fedopt", **arguments})
        self.job.set(keys)


def pass_over(recipe: str, others: Mapping[str, Any]) -> None:
    """Say of arguments of NVFlare's that they are not needed.

    Args:
        recipe: Name of the recipe, for the message.
        others: Arguments that it does not know itself.

    Raises:
        UsageError: There is no such argument.
    """
    for name in others:
        if name not in UNNEEDED_ARGUMENTS:
            near = did_you_mean(name, FedAvgRecipe.__init__.__annotations__)
            hint = near or "docs/python.md lists them"
            raise UsageError(f"{recipe} has no argument {name}; {hint}")
        notice(f"{name} is not needed: {UNNEEDED_ARGUMENTS[name]}")
