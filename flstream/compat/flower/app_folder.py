"""The job of a Flower app: what its folder's pyproject.toml says, in the keys of a job file."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from flstream.compat.flower.helpers import flatten_dict
from flstream.compat.flower.requests import ROUNDS, FlowerApp
from flstream.errors import UsageError
from flstream.job import Job
from flstream.job.load import load_job, settings_of

_DEFAULT_NODES = 10
_DEFAULT_ROUNDS = 3
_CONFIG = "app.config."
_RESUME = "app.resume"

# A strategy of an app's own, a grid loop, and Flower's strategies that compare or change replies.
_READS_REPLIES = re.compile(
    r"\b(aggregate_train|send_and_receive|pull_messages|(Multi)?Krum|Bulyan|DifferentialPrivacy)"
)


def app_table(folder: Path) -> Mapping[str, Any] | None:
    """Return the table ``tool.flwr`` of a folder's pyproject.toml; None where it is no app.

    Raises:
        UsageError: The file cannot be read.
    """
    path = folder / "pyproject.toml"
    if not path.is_file():
        return None
    try:
        project = tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    flower: Any = project.get("tool", {}).get("flwr", {})
    app: Any = flower.get("app", {}) if isinstance(flower, Mapping) else {}
    if not isinstance(app, Mapping) or "components" not in app:
        return None
    for key in ("components", "config"):
        if not isinstance(app.get(key, {}), Mapping):
            raise UsageError(f"{path}: [tool.flwr.app.{key}] is a table, and not {app[key]!r}")
    return {"name": project.get("project", {}).get("name", folder.name), **flower}


def load_app_job(folder: Path, overrides: Sequence[str], settings: Mapping[str, Any]) -> Job:
    """Return the job of a Flower app.

    Args:
        folder: Absolute path of its folder.
        overrides: Texts such as ``app.config.lr=0.1`` and ``clients.count=4``.
        settings: Values by dotted key, which apply last; one that is None is left out.

    Raises:
        UsageError: It has no components, or an override names a setting that the app has not.
        JobError: The job has mistakes; the message names them.
    """
    table = app_table(folder)
    assert table is not None
    app = table["app"]
    for key in ("serverapp", "clientapp"):
        named = app["components"].get(key)
        if not re.fullmatch(r"[\w.]+:\w+", str(named)):
            what = f"no {key}" if named is None else f"{named!r} as its {key}"
            raise UsageError(
                f"{folder}/pyproject.toml names {what} in [tool.flwr.app.components]; name one "
                'such as "package.module:app"'
            )
    config = flatten_dict(app.get("config", {}))
    of_app = settings_of([text for text in overrides if text.lstrip().startswith("app.")])
    rest = [text for text in overrides if not text.lstrip().startswith("app.")]
    own = {key.removeprefix(_CONFIG): value for key, value in of_app.items() if key != _RESUME}
    for key in own:
        if key not in config:
            known = ", ".join(sorted(config)) or "none"
            raise UsageError(
                f"{_CONFIG}{key} is no setting of the app; its settings "
                f"([tool.flwr.app.config]) are {known}"
            )
    # A resumed run may have more rounds, so they are the job's, and in no argument.
    rounds = own.pop(ROUNDS, config.get(ROUNDS, _DEFAULT_ROUNDS))
    by_key = settings_of(rest)
    by_key |= {key: value for key, value in settings.items() if value is not None}
    count, components = int(by_key.get("clients.count", _nodes(table))), app["components"]
    serverapp, clientapp = components["serverapp"], components["clientapp"]
    seed = by_key.get("seed", 0)
    flower_app = FlowerApp(str(folder), serverapp, clientapp, config | own, seed)
    text = msgspec.json.encode(flower_app).decode()
    values: dict[str, Any] = {
        "name": re.sub(r"[^A-Za-z0-9._-]+", "-", str(table["name"]))[:100],
        "rounds": rounds,
        "clients": {
            "count": count,
            "parallel": min(count, os.cpu_count() or 1),
            "suspend_after": 0,
        },
        "model": {
            "factory": "flstream.compat.flower.main:initial_arrays",
            "args": {"app": text, "sites": count},
            "build": "whole",
        },
        "train": {
            "learner": "flstream.compat.flower.learner:AppLearner",
            "args": {"app": text},
        },
        "workflow": {
            "type": "flstream.compat.flower.program:flower",
            "args": {
                "app": text,
                "resume": of_app.get(_RESUME, True),
                "reads_replies": _names_replies(folder, serverapp),
                # Metrics that come with updates are no scores there.
                "evaluate": "task",
            },
        },
    }
    return load_job(folder / "pyproject.toml", rest, settings, json.dumps(values))


def _names_replies(folder: Path, component: str) -> bool:
    """Return whether the code of a ServerApp names something that reads the arrays of replies."""
    package = folder / component.partition(":")[0].partition(".")[0]
    files = [package.with_suffix(".py"), *package.rglob("*.py")]
    texts = (path.read_text(errors="replace") for path in files if path.is_file())
    return any(_READS_REPLIES.search(text) for text in texts)


def _nodes(table: Mapping[str, Any]) -> int:
    """Return the number of nodes of an app's default federation."""
    federations = table.get("federations", {})
    chosen = federations.get(federations.get("default"), {})
    options = flatten_dict(chosen.get("options", {})) if isinstance(chosen, Mapping) else {}
    nodes = options.get("num-supernodes", _DEFAULT_NODES)
    return nodes if isinstance(nodes, int) else _DEFAULT_NODES
