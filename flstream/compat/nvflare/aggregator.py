"""NVFlare's base class of aggregators of models, as a rule that combines all tensors at once."""

from __future__ import annotations

import logging
from abc import ABCMeta, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partialmethod
from typing import Any

import numpy as np

from flstream.aggregation.elements import Array
from flstream.aggregation.fold_rule import GroupUpdate, TensorGroup
from flstream.client.fl_model import FLModel, ParamsType
from flstream.errors import AggregationError
from flstream.job.bodies import NUM_STEPS

_ALL = "model"


class _MadeByJob(ABCMeta):
    """Type of classes that take, beside their own arguments, those that a recipe adds."""

    def __call__(
        cls, *args: Any, params_type: str = "FULL", framework: str = "numpy", **kwargs: Any
    ) -> Any:
        aggregator: Any = super().__call__(*args, **kwargs)
        aggregator._params_type, aggregator._framework = ParamsType(params_type), framework
        return aggregator


class ModelAggregator(metaclass=_MadeByJob):
    """Aggregator of whole models, as NVFlare's programs derive their own from.

    A recipe takes an object: ``FedAvgRecipe(aggregator=Median())``. The run makes it anew for each
    fold, by the attributes that have the names of its constructor's arguments. It is given all
    updates in the cohort's order, as models of the real floats that are aggregated; other tensors
    take the mean. So the server holds all updates at once, in float64 beside that, within
    ``aggregation.memory_budget``.

    In a job file it is ``aggregation { method = "file.py:Class", args { ... } }``. Further ``args``
    are ``params_type``, ``DIFF`` for differences from the model that sites received, and
    ``framework``, ``pytorch`` for tensors in place of arrays. Arrays are float32, unless a site has
    sent what only float64 holds.
    """

    _params_type = ParamsType.FULL
    _framework = "numpy"

    @abstractmethod
    def accept_model(self, model: FLModel) -> None:
        """Take the answer of one site.

        Args:
            model: Its ``params``; in ``meta`` its ``client_name``, and its number of examples or
                steps under NVFlare's key.
        """

    @abstractmethod
    def aggregate_model(self) -> FLModel:
        """Return the combination of all models that were accepted, of the same names."""

    @abstractmethod
    def reset_stats(self) -> None:
        """Forget all models that were accepted."""

    def groups(self, names: Sequence[str]) -> Mapping[str, Sequence[str]]:
        """Return one group of all tensors."""
        return {_ALL: names} if names else {}

    def combine(self, group: TensorGroup, updates: Sequence[GroupUpdate]) -> Mapping[str, Any]:
        """Combine the models of all sites."""
        is_difference = self._params_type == ParamsType.DIFF
        self.reset_stats()
        for update in updates:
            params = {
                name: self._converted(value, group.base[name] if is_difference else None)
                for name, value in update.tensors.items()
            }
            meta = {"client_name": update.site, NUM_STEPS: update.weight}
            self.accept_model(FLModel(params, self._params_type, meta=meta))
        combined = self.aggregate_model()
        if not isinstance(combined, FLModel) or not combined.params:
            raise AggregationError(
                f"{type(self).__name__}.aggregate_model returned no FLModel with params; return "
                "one with a tensor for each name that it was given"
            )
        params = {name: np.asarray(value, np.float64) for name, value in combined.params.items()}
        if combined.params_type == ParamsType.DIFF:
            for name in params.keys() & group.base.keys():
                params[name] += group.base[name]
        return params

    def _converted(self, sent: Array, base: Array | None) -> Any:
        """Return an array in the form in which the class takes it."""
        single = sent.astype(np.float32)
        dtype = single.dtype if np.array_equal(single, sent) else sent.dtype
        value = (sent if base is None else sent - base).astype(dtype)
        if self._framework != "pytorch":
            return value
        import torch

        return torch.from_numpy(value)

    @property
    def logger(self) -> logging.Logger:
        """The logger of its class."""
        return logging.getLogger(type(self).__name__)

    def _log(self, level: int, message: str, **how: Any) -> None:
        """Log a message; as an exception, with the one that is being handled."""
        self.logger.log(level, message, **how)

    debug = partialmethod(_log, logging.DEBUG)
    info = partialmethod(_log, logging.INFO)
    warning = partialmethod(_log, logging.WARNING)
    error = partialmethod(_log, logging.ERROR)
    exception = partialmethod(_log, logging.ERROR, exc_info=True)
