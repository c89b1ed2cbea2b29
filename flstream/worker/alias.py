"""NVFlare's names for this package's objects, so that its scripts run unchanged.

``train.alias = nvflare`` in a job file has a site import them. Constants have the values that they
have in NVFlare 2.9. What is not listed here has no counterpart, and its import fails.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from flstream.client.fl_model import FLModel, ParamsType
from flstream.client.proximal import seen_in_loss
from flstream.client.scaffold import PTScaffoldHelper
from flstream.job.bodies import CONTROL, NUM_STEPS
from flstream.worker.joined_bodies import RECEIVED_AS, SENT_AS

if TYPE_CHECKING:
    import torch

ALIASES = {
    "nvflare.client": "flstream.client",
    "nvflare.client.api": "flstream.client",
    "nvflare.client.decorator": "flstream.client",
    "nvflare.client.hf": "flstream.client.hf",
    "nvflare.client.lightning": "flstream.client.lightning",
    "nvflare.client.tracking": "flstream.client.tracking",
}
"""Modules of this package by the names that they have in NVFlare."""


def _constants(class_name: str, *names: str, **values: str) -> type:
    """Return a class of constants, by default their own names in lower case."""
    return type(class_name, (), {**{name: name.lower() for name in names}, **values})


_LOGGED = ("SCALAR", "SCALARS", "TEXT", "PARAMETER", "PARAMETERS", "METRIC", "METRICS")

NAMES: dict[str, list[type]] = {
    # Kinds of logged values, as log() takes and ignores them.
    "nvflare.apis.analytix": [
        _constants("AnalyticsDataType", **{name: name for name in (*_LOGGED, "TAG", "TAGS")})
    ],
    # Keys of meta. flstream reads NUM_STEPS_CURRENT_ROUND; a script may use the others as it likes.
    "nvflare.apis.fl_constant": [
        _constants(
            "FLMetaKey",
            *("INITIAL_METRICS", "VALIDATE_TYPE", "START_ROUND", "CURRENT_ROUND", "TOTAL_ROUNDS"),
            *("JOB_ID", "SITE_NAME", "SUBMIT_MODEL_NAME"),
            NUM_STEPS_CURRENT_ROUND=NUM_STEPS,
        )
    ],
    "nvflare.app_common.abstract.fl_model": [FLModel, ParamsType],
    "nvflare.app_common.app_constant": [
        # Keys of meta under which SCAFFOLD's control variates travel.
        _constants(
            "AlgorithmConstants",
            SCAFFOLD_CTRL_DIFF=SENT_AS[CONTROL],
            SCAFFOLD_CTRL_GLOBAL=RECEIVED_AS[CONTROL],
            SCAFFOLD_CTRL_AGGREGATOR_ID="scaffold_ctrl_aggregator",
        ),
        _constants(
            "AppConstants",
            *("START_ROUND", "CURRENT_ROUND", "NUM_ROUNDS"),
            TASK_TRAIN="train",
            TASK_VALIDATION="validate",
            TASK_SUBMIT_MODEL="submit_model",
        ),
        _constants("ModelName", "BEST_MODEL", "FINAL_MODEL"),
    ],
    "nvflare.app_common.np.constants": [_constants("NPConstants", "NUMPY_KEY")],
    "nvflare.app_opt.pt.fedproxloss": [],  # PTFedProxLoss, which needs torch
    "nvflare.app_opt.pt.scaffold": [PTScaffoldHelper],
}
"""Names that scripts import from NVFlare's other modules."""


def fedprox_loss() -> type[torch.nn.Module]:
    """Make the class of FedProx's term for modules (Li et al. 2020, arXiv:1812.06127)."""
    import torch

    class PTFedProxLoss(torch.nn.Module):
        """``mu / 2 * ||w - w_global||^2`` of two modules' parameters, in their order."""

        def __init__(self, mu: float = 0.01) -> None:
            super().__init__()
            if mu < 0.0:
                raise ValueError(f"PTFedProxLoss was given mu = {mu}; it must be 0 or more")
            self.mu = mu

        def forward(self, local: torch.nn.Module, received: torch.nn.Module) -> Any:
            """Return the term: a scalar tensor, or 0.0 for modules without parameters."""
            total: Any = 0.0
            for ours, theirs in zip(local.parameters(), received.parameters(), strict=True):
                total = total + (self.mu / 2) * torch.sum((ours - theirs) ** 2)
            return seen_in_loss(total) if isinstance(total, torch.Tensor) else total

    return PTFedProxLoss


def install() -> None:
    """Make this process import NVFlare's names from here, even beside an NVFlare."""
    for name in [other for other in list(sys.modules) if other.partition(".")[0] == "nvflare"]:
        del sys.modules[name]
    for name, ours in ALIASES.items():
        _enter(name, importlib.import_module(ours))
    for name, classes in NAMES.items():
        module = ModuleType(name, f"Names of {name} that flstream has.")
        for cls in classes or [fedprox_loss()]:
            setattr(module, cls.__name__, cls)
        _enter(name, module)
    sys.meta_path.insert(0, _NoOther())


def _enter(name: str, module: ModuleType) -> None:
    """Enter a module under a name, with the packages above it."""
    sys.modules[name] = module
    parent, _, last = name.rpartition(".")
    if not parent:
        return
    if parent not in sys.modules:
        package = ModuleType(parent, f"The part of {parent} that flstream has.")
        package.__path__ = []
        _enter(parent, package)
    if not hasattr(sys.modules[parent], last):
        setattr(sys.modules[parent], last, module)


class _NoOther(MetaPathFinder):
    """Import hook that refuses NVFlare's other modules, even where installed."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Raise an error for a module of NVFlare; leave others to the other finders."""
        if fullname.partition(".")[0] != "nvflare":
            return None
        raise ModuleNotFoundError(
            f"train.alias = nvflare has no {fullname}; it has {', '.join([*ALIASES, *NAMES])}",
            name=fullname,
        )
