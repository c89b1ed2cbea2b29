"""Writers of metrics, named after those of NVFlare's client API.

A script moves over by changing its import::

    from flstream.client.tracking import SummaryWriter

    writer = SummaryWriter()
    writer.add_scalar("loss", loss, global_step)

Whichever of them is used, values are recorded like those of :func:`flstream.client.log`: in the
run's events, with the site and the round. The run's report shows them, and so does what
``tracking.type`` of the job file names. Nothing is sent to a server of MLflow or of Weights &
Biases.

A writer can be made anywhere, also before ``init()``; values recorded before the first task have
round 0. As in ``log``, a value that is neither a number nor text, a text that is too long, or a
step that is no int is a :class:`~flstream.errors.ClientError`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flstream.client.session import current

__all__ = ["MLflowWriter", "SummaryWriter", "WandBWriter", "init", "shutdown"]


def init(rank: str | int | None = None, config_file: str | None = None) -> None:
    """Return at once: a writer needs nothing to begin; accepted for NVFlare's sake."""


def shutdown(ctx: object = None) -> None:
    """Return at once, too: values that were recorded are on their way already."""


class _Writer:
    """Writer that has no place of its own, and nothing to flush."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def flush(self) -> None:
        """Return at once: a recorded value is on its way already."""

    def close(self) -> None:
        """Return at once, too; the writer can still be used."""


class SummaryWriter(_Writer):
    """Writer with the methods of TensorBoard's ``SummaryWriter``."""

    def add_scalar(self, tag: str, scalar: Any, global_step: int | None = None, **_: Any) -> None:
        """Record a number.

        Args:
            tag: Name of the value.
            scalar: The number.
            global_step: Step of the site's own; None for the round.
        """
        current().log(tag, scalar, global_step)

    def add_scalars(
        self, tag: str, scalars: Mapping[str, Any], global_step: int | None = None, **_: Any
    ) -> None:
        """Record several numbers, each as ``tag/name``.

        Args:
            tag: First part of their names.
            scalars: Numbers by name.
            global_step: Step of the site's own; None for the round.
        """
        current().log(tag, dict(scalars), global_step)

    def add_text(self, tag: str, text: str, global_step: int | None = None, **_: Any) -> None:
        """Record text.

        Args:
            tag: Name of the value.
            text: The text.
            global_step: Step of the site's own; None for the round.
        """
        current().log(tag, str(text), global_step)


class MLflowWriter(_Writer):
    """Writer with the names of MLflow's logging functions."""

    def log_param(self, key: str, value: Any, **_: Any) -> None:
        """Record a parameter as text under ``params/key``."""
        self.log_params({key: value})

    def log_params(self, values: Mapping[str, Any], **_: Any) -> None:
        """Record parameters as text, each under ``params/key``."""
        current().log("params", {key: str(value) for key, value in values.items()})

    def log_metric(self, key: str, value: Any, step: int | None = None, **_: Any) -> None:
        """Record a number.

        Args:
            key: Name of the value.
            value: The number.
            step: Step of the site's own; None for the round.
        """
        current().log(key, value, step)

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None, **_: Any) -> None:
        """Record several numbers, each under its own name; see :meth:`log_metric`."""
        for key, value in metrics.items():
            current().log(key, value, step)

    def log_text(self, text: str, artifact_file_path: str, **_: Any) -> None:
        """Record text under the name that its file would have; no file is written."""
        current().log(artifact_file_path, str(text))

    def set_tag(self, key: str, tag: Any, **_: Any) -> None:
        """Record a tag as text under ``tags/key``."""
        self.set_tags({key: tag})

    def set_tags(self, tags: Mapping[str, Any], **_: Any) -> None:
        """Record tags as text, each under ``tags/key``."""
        current().log("tags", {key: str(tag) for key, tag in tags.items()})


class WandBWriter(_Writer):
    """Writer with the logging function of Weights & Biases."""

    def log(self, metrics: Mapping[str, Any], step: int | None = None, **_: Any) -> None:
        """Record values under their own names; those of a mapping in it as ``key/name``.

        Args:
            metrics: Numbers, texts or mappings of these, by name.
            step: Step of the site's own; None for the round.
        """
        for key, value in metrics.items():
            current().log(key, value, step)
