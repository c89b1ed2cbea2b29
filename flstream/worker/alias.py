"""NVFlare's names for this package's objects, so that its scripts run unchanged.

``train.alias = nvflare`` in a job file has a site import them. Constants have the values that they
have in NVFlare 2.9. What is not listed here has no counterpart, and its import fails.
"""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pkgutil import resolve_name
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

from flstream import client
from flstream.client.fl_model import FLModel, ParamsType
from flstream.client.proximal import seen_in_loss
from flstream.client.ranks import is_first_rank
from flstream.client.scaffold import PTScaffoldHelper
from flstream.errors import UsageError
from flstream.job.bodies import CONTROL, NUM_STEPS, PROXIMAL_MU
from flstream.worker.joined_bodies import RECEIVED_AS, SENT_AS

if TYPE_CHECKING:
    import torch

ALIASES = {
    "client": "flstream.client",
    "client.api": "flstream.client",
    "client.decorator": "flstream.client",
    "client.hf": "flstream.client.hf",
    "client.lightning": "flstream.client.lightning",
    "client.tracking": "flstream.client.tracking",
}
"""Modules of this package by the names that they have in NVFlare, without its own."""


def _constants(class_name: str, *names: str, **values: str) -> type:
    """Return a class of constants, by default their own names in lower case."""
    return type(class_name, (), {**{name: name.lower() for name in names}, **values})


_LOGGED = ("SCALAR", "SCALARS", "TEXT", "PARAMETER", "PARAMETERS", "METRIC", "METRICS")


def _receive(
    timeout: float | None = None,
    into: torch.nn.Module | Mapping[str, torch.Tensor] | None = None,
    file: str | None = None,
) -> FLModel | None:
    """Fetch the global model; None in other ranks than the first, as in NVFlare."""
    model = client.receive(timeout, into, file)
    return model if is_first_rank() else None


def get_fedprox_mu(model: FLModel) -> float:
    """Return the weight of FedProx's term in a received model's ``meta``.

    Raises:
        ValueError: The server gives none, or it is not above 0.
    """
    mu = model.meta.get(PROXIMAL_MU)
    if not isinstance(mu, int | float) or not 0.0 < mu < float("inf"):
        raise ValueError(
            f"the received meta[{PROXIMAL_MU!r}] is {mu}; set workflow.args.{PROXIMAL_MU}, or "
            "fedprox_mu of the recipe, above 0"
        )
    return float(mu)


def get_obj_logger(obj: object) -> logging.Logger:
    """Return the logger named after an object's class, or after a class."""
    cls = obj if isinstance(obj, type) else type(obj)
    return logging.getLogger(f"{cls.__module__}.{cls.__qualname__}")


NAMES: dict[str, list[Any]] = {
    # Kinds of logged values, as log() takes and ignores them.
    "apis.analytix": [
        _constants("AnalyticsDataType", **{name: name for name in (*_LOGGED, "TAG", "TAGS")})
    ],
    # Keys of meta. flstream reads NUM_STEPS_CURRENT_ROUND; a script may use the others as it likes.
    "apis.fl_constant": [
        _constants(
            "FLMetaKey",
            *("INITIAL_METRICS", "VALIDATE_TYPE", "START_ROUND", "CURRENT_ROUND", "TOTAL_ROUNDS"),
            *("JOB_ID", "SITE_NAME", "SUBMIT_MODEL_NAME"),
            NUM_STEPS_CURRENT_ROUND=NUM_STEPS,
        )
    ],
    "app_common.abstract.fl_model": [FLModel, ParamsType],
    "app_common.app_constant": [
        # Keys of meta under which SCAFFOLD's control variates and FedProx's weight travel.
        _constants(
            "AlgorithmConstants",
            FEDPROX_MU=PROXIMAL_MU,
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
    "app_common.np.constants": [_constants("NPConstants", "NUMPY_KEY")],
    "app_common.utils.fedprox_utils": [get_fedprox_mu],
    "app_opt.pt.fedce": [],  # for the reason
    "app_opt.pt.scaffold": [PTScaffoldHelper],
    "fuel.utils.log_utils": [get_obj_logger],
}
"""Names that scripts import from NVFlare's other modules, by module."""

_AGGREGATOR = "flstream.compat.nvflare.aggregator:ModelAggregator"

REFUSED: Mapping[str, str] = {
    "PTFedCEHelper": "FedCE has no counterpart here; write its weights as a workflow of your own",
}
"""Names without a counterpart that scripts import, with what to do instead."""


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


class Refusal:
    """Object in the place of a class without a counterpart; its use raises a UsageError.

    A program may import what it uses in other cases only, or in annotations.

    Args:
        sentence: Message of the error.
    """

    def __init__(self, sentence: str) -> None:
        self._sentence = sentence

    def __mro_entries__(self, bases: object) -> tuple[type]:
        # A class of it may be in a module that is imported for something else.
        return (type("Refused", (), {"__new__": self.__call__}),)

    def __str__(self) -> str:
        return self._sentence

    def __call__(self, *_: object, **__: object) -> NoReturn:
        """Raise the error."""
        raise UsageError(self._sentence)

    def __getattr__(self, name: str) -> Any:
        """Raise the error."""
        if name[:2] == "__":  # as libraries ask
            raise AttributeError(name)
        raise UsageError(self._sentence)

    def __instancecheck__(self, instance: object) -> bool:
        return False

    def __or__(self, other: object) -> Any:
        return Any  # in an annotation

    __ror__ = __or__


class AliasModule(ModuleType):
    """Module of another framework's names, for objects of this package.

    Args:
        name: Name of the module.
        names: Objects by their names; a text with a colon is the place of one, ``module:name``.
        reasons: Why names have no counterpart, or what to do instead, by name.
    """

    def __init__(self, name: str, names: Mapping[str, Any], reasons: Mapping[str, str]) -> None:
        super().__init__(name, f"Names of {name} that flstream has.")
        self.__path__: list[str] = []
        self.__all__ = [*names]
        self._names, self._reasons = names, reasons

    def __getattr__(self, name: str) -> Any:
        """Return the object of a name, and refuse other names with a sentence."""
        if f"{self.__name__}.{name}" in sys.modules:
            raise AttributeError(name)
        if name not in self._names:
            if name[:1] == "_":
                raise AttributeError(name)
            if (reason := self._reasons.get(name)) is not None:
                return Refusal(f"flstream has no {name} of {self.__name__}: {reason}")
            listed = ", ".join(sorted(self._names))
            known = f"it has {listed}" if listed else "docs/moving.md lists what it has"
            raise ImportError(f"flstream has no {name} of {self.__name__}: {known}")
        value = self._names[name]
        if isinstance(value, str) and ":" in value:
            value = resolve_name(value)
        setattr(self, name, value)
        return value


def install(
    package: str, names: Mapping[str, Mapping[str, Any]], reasons: Mapping[str, str]
) -> None:
    """Make this process import a framework's names from here, even where it is installed.

    Args:
        package: Name of the framework's package.
        names: Objects by module and name: see :func:`enter_names`.
        reasons: See :class:`AliasModule`.
    """
    for name in [other for other in list(sys.modules) if other.partition(".")[0] == package]:
        del sys.modules[name]
    enter_names(package, names, reasons)
    others = [finder for finder in sys.meta_path if getattr(finder, "package", "") != package]
    sys.meta_path[:] = [_NoOther(package), *others]


def client_names() -> dict[str, dict[str, Any]]:
    """Return what training code imports from NVFlare: objects by module and name."""
    modules = {name: importlib.import_module(ours) for name, ours in ALIASES.items()}
    names = {
        name: {member: getattr(module, member) for member in vars(module)["__all__"]}
        for name, module in modules.items()
    }
    for listed in names.values():
        if "receive" in listed:
            listed["receive"] = _receive
    for name, objects in NAMES.items():
        names[name] = {member.__name__: member for member in objects}
    names["app_common.aggregators.model_aggregator"] = {"ModelAggregator": _AGGREGATOR}
    names["app_opt.pt.fedproxloss"] = {"PTFedProxLoss": fedprox_loss()}
    return names


def enter_names(
    package: str, names: Mapping[str, Mapping[str, Any]], reasons: Mapping[str, str]
) -> None:
    """Enter modules below a package, and the packages above them, in ``sys.modules``.

    Args:
        package: Name of the package.
        names: Objects by module and name: see :class:`AliasModule`.
        reasons: See :class:`AliasModule`.
    """
    paths = {""}
    for name in names:
        parts = name.split(".")
        paths |= {".".join(parts[:count]) for count in range(1, len(parts) + 1)}
    for path in sorted(paths):
        full = f"{package}.{path}" if path else package
        if path or package not in sys.modules:
            module = AliasModule(full, names.get(path, {}), reasons)
            sys.modules[full] = module
        parent, _, last = full.rpartition(".")
        if parent in sys.modules and path:
            setattr(sys.modules[parent], last, sys.modules[full])


class _NoOther(MetaPathFinder):
    """Import hook that refuses a framework's other modules, even where it is installed."""

    def __init__(self, package: str) -> None:
        self.package = package

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Raise an error for a module of the framework; leave others to the other finders."""
        if fullname.partition(".")[0] != self.package:
            return None
        raise ModuleNotFoundError(
            f"flstream has no {fullname}; docs/moving.md lists what it has of {self.package}",
            name=fullname,
        )
