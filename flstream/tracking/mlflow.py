"""Tracker that writes a local store of MLflow, with a run for each site."""

from __future__ import annotations

import os
import re
import time as clock
from collections.abc import Iterator, Mapping
from pathlib import Path

# MLflow writes a local file here, and reports nothing to anybody.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag

from flstream.tracking.tracker import GLOBAL, TrackedRun

FOLDER = "mlflow"
STORE = "mlflow.db"

# Characters that MLflow does not accept in a name.
_OTHER = re.compile(r"[^\w\-. /]", flags=re.ASCII)
_LONGEST_NAME = 250
_MOST_METRICS = 1000  # at a time
_MOST_TEXT = 6000  # characters of a parameter, and more of a tag
_PARAMETER, _TAG = "params/", "tags/"
# Each write is a transaction, and waits for the disk.
_SECONDS_BETWEEN_WRITES = 1.0


class MLflow:
    """Writer of ``mlflow/mlflow.db`` (SQLite) in the run's folder, and texts beside.

    The experiment has the job's name. The whole run is an MLflow run named ``global``, and the
    sites' are nested in it. What an earlier one has written is deleted, as MLflow deletes runs.

    Args:
        run: The run.
    """

    def __init__(self, run: TrackedRun) -> None:
        folder = run.folder / FOLDER
        folder.mkdir(exist_ok=True)
        self._client = MlflowClient(tracking_uri=f"sqlite:///{folder / STORE}")
        self._experiment = self._new_experiment(run.job, folder / "artifacts")
        self._began = _milliseconds(run.began)
        self._last = self._began
        self._runs: dict[str, str] = {}
        self._metrics: dict[str, list[Metric]] = {}
        self._written = clock.monotonic()

    def scalars(self, source: str, step: int, values: Mapping[str, float], time: float) -> None:
        """Take numbers."""
        self._last = at = _milliseconds(time)
        new = (Metric(_name(key), value, at, step) for key, value in values.items())
        self._metrics.setdefault(source, []).extend(new)

    def text(self, source: str, step: int, key: str, text: str, time: float) -> None:
        """Write text: as a parameter or a tag if it was logged as one, else as a file."""
        self._last = _milliseconds(time)
        run = self._run(source)
        if key.startswith(_PARAMETER):
            param = Param(_name(key.removeprefix(_PARAMETER)), text[:_MOST_TEXT])
            if self._client.get_run(run).data.params.get(param.key) is None:
                self._client.log_batch(run, params=[param])
                return
            key = f"{_TAG}{param.key}"  # a parameter keeps its first value
        if key.startswith(_TAG):
            tag = RunTag(_name(key.removeprefix(_TAG)), text[:_MOST_TEXT])
            self._client.log_batch(run, tags=[tag])
        else:
            self._client.log_text(run, text, f"text/{_name(key)}/{step}.txt")

    def flush(self) -> None:
        """Write the numbers, unless the last were written a moment ago."""
        if clock.monotonic() - self._written >= _SECONDS_BETWEEN_WRITES:
            self._write()

    def close(self) -> None:
        """Write all numbers, and end MLflow's runs."""
        self._write()
        for run in self._runs.values():
            self._client.set_terminated(run, end_time=self._last)

    def _new_experiment(self, name: str, artifacts: Path) -> str:
        experiment = self._client.get_experiment_by_name(name)
        if experiment is None:
            experiment_id: str = self._client.create_experiment(
                name, artifact_location=artifacts.as_uri()
            )
            return experiment_id
        while runs := self._client.search_runs([experiment.experiment_id]):
            for run in runs:
                self._client.delete_run(run.info.run_id)
        known: str = experiment.experiment_id
        return known

    def _write(self) -> None:
        for source, metrics in self._metrics.items():
            run = self._run(source)
            for batch in _batches(metrics):
                self._client.log_batch(run, metrics=batch)
        self._metrics = {}
        self._written = clock.monotonic()

    def _run(self, source: str) -> str:
        if source not in self._runs:
            tags = {} if source == GLOBAL else {"mlflow.parentRunId": self._run(GLOBAL)}
            run = self._client.create_run(
                self._experiment, start_time=self._began, tags=tags, run_name=source
            )
            self._runs[source] = run.info.run_id
        return self._runs[source]


def _batches(metrics: list[Metric]) -> Iterator[list[Metric]]:
    for start in range(0, len(metrics), _MOST_METRICS):
        yield metrics[start : start + _MOST_METRICS]


def _milliseconds(time: float) -> int:
    return int(time * 1000)


def _name(key: str) -> str:
    """Return a name that MLflow accepts, and uses as a path, too."""
    parts = (part for part in _OTHER.sub("_", key).split("/") if part not in ("", ".", ".."))
    return "/".join(parts)[:_LONGEST_NAME].strip("/") or "_"
