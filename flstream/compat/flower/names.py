"""Flower's names for this package's objects, by an import hook in the processes of a run."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_ROOM = "flstream.compat.flower"


def _in(module: str, names: str) -> dict[str, str]:
    """Return names with the module that has them."""
    return dict.fromkeys(names.split(), f"{_ROOM}.{module}")


_RECORDS = _in("records", "Array ArrayRecord ConfigRecord MetricRecord RecordDict")
_MESSAGES = _in("messages", "Context DEFAULT_TTL Error Message MessageType Metadata")
_CLIENT = _in("client_app", "Client ClientApp NumPyClient")
_CALLABLES = _in("client_app", "ClientAppCallable Mod")
_SERVER = {**_in("grid", "Grid"), **_in("server_app", "ServerApp")}
_STRATEGIES = _in(
    "strategies",
    "Bulyan FedAdagrad FedAdam FedAvg FedAvgM FedMedian FedOpt FedProx FedTrimmedAvg FedYogi Krum "
    "MultiKrum Result Strategy",
)
_PRIVACY = _in(
    "privacy",
    "DifferentialPrivacyClientSideAdaptiveClipping DifferentialPrivacyClientSideFixedClipping "
    "DifferentialPrivacyServerSideAdaptiveClipping DifferentialPrivacyServerSideFixedClipping",
)
_UTILITIES = _in(
    "strategies",
    "aggregate_arrayrecords aggregate_metricrecords config_to_str log_strategy_start_info "
    "sample_nodes validate_message_reply_consistency",
)
_ERRORS = _in("strategies", "AggregationError InconsistentMessageReplies")
_MODS = _in(
    "mods", "LocalDpMod adaptiveclipping_mod arrays_size_mod fixedclipping_mod message_size_mod"
)
_LOG = _in("helpers", "log logger")
_CONFIG = _in("helpers", "flatten_dict unflatten_dict")
_TYPES = _in("helpers", "Metrics NDArray NDArrays Parameters Scalar UserConfig UserConfigValue")

NAMES: Mapping[str, Mapping[str, str]] = {
    "flwr": _in("helpers", "__version__"),
    "flwr.app": {**_RECORDS, **_MESSAGES, **_TYPES},
    "flwr.client": _CLIENT,
    "flwr.client.mod": _MODS,
    "flwr.client.typing": _CALLABLES,
    "flwr.clientapp": _CLIENT,
    "flwr.clientapp.mod": _MODS,
    "flwr.clientapp.typing": _CALLABLES,
    "flwr.common": {**_RECORDS, **_MESSAGES, **_LOG, **_TYPES},
    "flwr.common.config": _CONFIG,
    "flwr.common.logger": _LOG,
    "flwr.common.record": _RECORDS,
    "flwr.common.typing": _TYPES,
    "flwr.server": _SERVER,
    "flwr.serverapp": _SERVER,
    "flwr.serverapp.exception": _ERRORS,
    "flwr.serverapp.strategy": {**_STRATEGIES, **_PRIVACY},
    "flwr.serverapp.strategy.result": _in("server_app", "Result"),
    "flwr.serverapp.strategy.strategy_utils": _UTILITIES,
}
"""By module of Flower, its names that are known here, each with the module that has it."""

_REFUSED = {
    "SecAggPlusWorkflow": "secure aggregation",
    "secaggplus_mod": "secure aggregation",
    "secagg_mod": "secure aggregation",
    "QFedAvg": "q-FedAvg",
    "FedXgbBagging": "aggregation of XGBoost's trees",
    "FedXgbCyclic": "aggregation of XGBoost's trees",
    "ServerConfig": "the older ServerApp with server_fn",
    "ServerAppComponents": "the older ServerApp with server_fn",
    "LegacyContext": "the older workflows",
    "DefaultWorkflow": "the older workflows",
    "start_server": "deployment",
    "start_client": "deployment",
    "start_simulation": "the simulation before ServerApps",
    "run_simulation": "the simulation from Python; use flstream simulate with the app's folder",
}


class _Module(ModuleType):
    """A module of Flower's name, whose names are imported when they are asked for."""

    def __getattr__(self, name: str) -> Any:
        known = NAMES.get(self.__name__, {})
        if name in known:
            value = getattr(importlib.import_module(known[name]), name)
            setattr(self, name, value)
            return value
        if f"{self.__name__}.{name}" in _packages():
            return importlib.import_module(f"{self.__name__}.{name}")
        if name == "__all__":
            return sorted(known)
        if name.startswith("__"):
            raise AttributeError(name)
        why = f": {_REFUSED[name]} is not there" if name in _REFUSED else ""
        names = ", ".join(sorted(known)) or "none"
        raise ImportError(
            f"flstream has no {self.__name__}.{name}{why}; its names here are {names}"
        )


def _packages() -> set[str]:
    return {name.rsplit(".", depth)[0] for name in NAMES for depth in range(name.count(".") + 1)}


class Finder(MetaPathFinder):
    """Import hook for Flower's modules, also where Flower is installed."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the module of a name of Flower; raise an error for one that is not known."""
        if fullname.partition(".")[0] != "flwr":
            return None
        if fullname not in _packages():
            raise ModuleNotFoundError(
                f"flstream has no {fullname}; it has {', '.join(NAMES)}", name=fullname
            )
        return ModuleSpec(fullname, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module."""
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Leave the module as it is: its names come when they are asked for."""


def install() -> None:
    """Make this process import Flower's names from here."""
    if any(isinstance(finder, Finder) for finder in sys.meta_path):
        return
    for name in [other for other in sys.modules if other.partition(".")[0] == "flwr"]:
        del sys.modules[name]
    sys.meta_path.insert(0, Finder())
    logger = logging.getLogger("flwr")
    if not logger.handlers:
        handler = logging.StreamHandler(sys.stdout)
        handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False


def load_app(folder: str, component: str) -> Any:
    """Import an app's component, ``package.module:name``, from its folder."""
    install()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    module, _, name = component.partition(":")
    return getattr(importlib.import_module(module), name)
