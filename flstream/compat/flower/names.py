"""Flower's names for this package's objects, and the import of an app that uses them."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from pkgutil import resolve_name
from typing import Any

from flstream.worker.alias import AliasModule, install


def _in(module: str, names: str) -> dict[str, str]:
    """Return names with their places in a module of this package."""
    return {name: f"{__package__}.{module}:{name}" for name in names.split()}


_RECORDS = _in("records", "Array ArrayRecord ConfigRecord MetricRecord RecordDict")
_MESSAGES = _in("messages", "Context DEFAULT_TTL Error Message MessageType Metadata")
_CLIENT = _in("apps", "ClientApp NumPyClient")
_CALLABLES = _in("apps", "ClientAppCallable Mod")
_SERVER = {**_in("grid", "Grid"), **_in("apps", "ServerApp")}
_STRATEGIES = _in(
    "strategies",
    "Bulyan FedAdagrad FedAdam FedAvg FedAvgM FedMedian FedOpt FedProx FedTrimmedAvg FedYogi Krum "
    "MultiKrum Strategy",
)
_PRIVACY = _in(
    "privacy",
    "DifferentialPrivacyClientSideAdaptiveClipping DifferentialPrivacyClientSideFixedClipping "
    "DifferentialPrivacyServerSideAdaptiveClipping DifferentialPrivacyServerSideFixedClipping",
)
_UTILITIES = _in(
    "aggregates",
    "aggregate_arrayrecords aggregate_metricrecords config_to_str log_strategy_start_info "
    "sample_nodes validate_message_reply_consistency",
)
_RESULT = _in("aggregates", "Result")
_ERRORS = {
    **_in("aggregates", "InconsistentMessageReplies"),
    "AggregationError": "flstream.errors:AggregationError",
}
_MODS = _in(
    "mods", "LocalDpMod adaptiveclipping_mod arrays_size_mod fixedclipping_mod message_size_mod"
)
_LOG = _in("helpers", "log logger")
_CONFIG = _in("helpers", "flatten_dict unflatten_dict")
_TYPES = _in("helpers", "Metrics NDArray NDArrays Parameters Scalar UserConfig UserConfigValue")

NAMES: Mapping[str, Mapping[str, str]] = {
    "": _in("helpers", "__version__"),
    "app": {**_RECORDS, **_MESSAGES, **_TYPES},
    "client": _CLIENT,
    "client.mod": _MODS,
    "client.typing": _CALLABLES,
    "clientapp": _CLIENT,
    "clientapp.mod": _MODS,
    "clientapp.typing": _CALLABLES,
    "common": {**_RECORDS, **_MESSAGES, **_LOG, **_TYPES},
    "common.config": _CONFIG,
    "common.logger": _LOG,
    "common.record": _RECORDS,
    "common.typing": _TYPES,
    "server": _SERVER,
    "serverapp": _SERVER,
    "serverapp.exception": _ERRORS,
    "serverapp.strategy": {**_STRATEGIES, **_PRIVACY, **_RESULT},
    "serverapp.strategy.result": _RESULT,
    "serverapp.strategy.strategy_utils": _UTILITIES,
}
"""By module of Flower, its names that are known here, each with its place."""

_OLDER = "it belongs to the older API; use @app.main() of the ServerApp"
_REASONS = {
    **dict.fromkeys(
        ("SecAggPlusWorkflow", "secaggplus_mod", "secagg_mod"), "secure aggregation is not there"
    ),
    **dict.fromkeys(
        ("FedXgbBagging", "FedXgbCyclic"), "aggregation of XGBoost's trees is not there"
    ),
    **dict.fromkeys(
        ("ServerConfig", "ServerAppComponents", "LegacyContext", "DefaultWorkflow"), _OLDER
    ),
    **dict.fromkeys(("ndarrays_to_parameters", "parameters_to_ndarrays"), _OLDER),
    **dict.fromkeys(("start_server", "start_client"), "deployment is not there"),
    **dict.fromkeys(
        ("run_simulation", "start_simulation"), "use flstream simulate with the app's folder"
    ),
    "Client": "FitIns and FitRes are not there; derive it from NumPyClient, or use a ClientApp",
    "QFedAvg": "q-FedAvg is not there",
}


def load_app(folder: str, component: str) -> Any:
    """Import an app's component, ``package.module:name``, with Flower's names."""
    if not isinstance(sys.modules.get("flwr"), AliasModule):
        install("flwr", NAMES, _REASONS)
        _print_log()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return resolve_name(component)


def _print_log() -> None:
    """Print what is logged under Flower's name."""
    logger = logging.getLogger("flwr")
    if not logger.handlers:
        handler = logging.StreamHandler(sys.stdout)
        handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False
