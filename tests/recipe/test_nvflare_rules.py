"""Single settings of NVFlare's configurations become keys or notes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flstream.recipe.nvflare import Conversion, convert, open_problems, write_job

SERVER, CLIENT = "config_fed_server.json", "config_fed_client.json"


def converted(root: Path, **parts: Any) -> Conversion:
    """Convert a folder with one app.

    Args:
        root: The folder.
        parts: Lists and keys of the server's configuration; `meta`, and `client` for the sites'.
    """
    app = root / "app" / "config"
    app.mkdir(parents=True, exist_ok=True)
    (root / "meta.json").write_text(json.dumps(parts.pop("meta", {"name": "it"})))
    if "client" in parts:
        (app / CLIENT).write_text(json.dumps(parts.pop("client")))
    (app / SERVER).write_text(json.dumps(parts))
    return convert(root)


def component(name: str, **args: Any) -> list[dict[str, Any]]:
    return [{"id": "c", "name": name, "args": args}]


workflow = component


def executor(name: str, **args: Any) -> dict[str, Any]:
    return {"executors": [{"tasks": ["train"], "executor": {"name": name, "args": args}}]}


def lost(conversion: Conversion) -> dict[str, str]:
    """Words on what has no counterpart, by place."""
    notes = [note for each in conversion.notes.values() for note in each]
    return {note.partition(" ")[0]: note.rpartition(": ")[2] for note in notes}


SITES = {"name": "it", "deploy_map": {"app": ["server", "site-1", "site-2", "site-3"]}}
SGD = {"path": "torch.optim.SGD", "args": {"lr": 0.5, "momentum": 0.6}}
SWARM_SITE = {"learn_task_timeout": 60, "min_responses_required": 2}
IN_PROCESS = "PTInProcessClientAPIExecutor"
# Parts of a folder, a key of what becomes of it, and its value there; what has none is listed.
RULES: dict[str, tuple[dict[str, Any], str, Any]] = {
    "a selector": (
        {
            "workflows": workflow("FedAvg", stop_cond="loss < 0.1"),
            "components": component("IntimeModelSelector", key_metric="e", negate_key_metric=True),
        },
        "workflow",
        {"type": "fedavg", "args": {"key_metric": "e", "key_metric_mode": "min"}},
    ),
    "a server's optimizer": (
        {"workflows": workflow("FedOpt", optimizer_args=SGD)},
        "server_optimizer",
        {"type": "fedavgm", "args": {"learning_rate": 0.5, "beta_1": 0.6}},
    ),
    "the sites' part of a swarm": (
        {
            "meta": SITES,
            "workflows": workflow("SwarmServerController", num_rounds=3, num_clients=2),
            "client": executor("SwarmClientController", **SWARM_SITE),
        },
        "clients",
        {"count": 3, "per_round": 2, "min_updates": 2, "round_timeout": 60},
    ),
    "a disabled component": (
        {"components": [{**component("TBAnalyticsReceiver")[0], "disabled": True}]},
        "tracking",
        None,
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_a_setting_becomes_a_key_of_the_job(tmp_path, rule):
    parts, key, value = RULES[rule]
    conversion = converted(tmp_path, **parts)
    assert conversion.values.get(key) == value
    assert lost(conversion) == {}


TWO = [*workflow("FedAvg", num_rounds=2), *workflow("Cyclic", num_rounds=3)]
TRACKERS = [*component("MLflowReceiver"), *component("TBAnalyticsReceiver")]
SHELL = {"components": component("SubprocessLauncher", script="bash custom/run.sh")}
LOST: list[tuple[dict[str, Any], str, str]] = [
    ({"workflows": workflow("Cyclic", train_timeout=0)}, "train_timeout", "no limit, while"),
    ({"components": component("PTFileModelPersistor", order="FIXED")}, "order", "not known here"),
    ({"workflows": TWO}, "workflows[1].args.num_rounds", "rounds is 2 already"),
    ({"components": TRACKERS}, "components[0]", 'tracking.type is "tensorboard" already'),
    ({"client": SHELL}, "components[0].args.script", ""),
]


@pytest.mark.parametrize(("parts", "path", "word"), LOST)
def test_what_has_no_counterpart_is_listed_with_its_reason(tmp_path, parts, path, word):
    [(place, reason)] = lost(converted(tmp_path, **parts)).items()
    assert place.endswith(path)
    assert word in reason


def test_one_script_and_its_arguments_are_those_of_all_sites(tmp_path):
    meta = {"name": "it", "deploy_map": {"a": ["server", "x"], "b": ["y"], "c": ["z"]}}
    for app, script, code in (("a", "one.py", "1"), ("b", "two.py", "2"), ("c", "one.py", "3")):
        for folder in ("config", "custom"):
            (tmp_path / app / folder).mkdir(parents=True)
        client = executor(IN_PROCESS, task_script_path=script)
        (tmp_path / app / "config" / CLIENT).write_text(json.dumps(client))
        (tmp_path / app / "custom" / script).write_text(code)
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    conversion = convert(tmp_path)
    assert conversion.values["train"]["script"] == "one.py"
    copied = {name: path.read_text() for name, path in conversion.files.items()}
    assert copied == {"one.py": "1", "two.py": "2"}
    assert [*conversion.notes] == [f"b/config/{CLIENT}", "c/custom/one.py"]


def test_values_that_a_key_does_not_take_are_what_the_job_needs_mended(tmp_path):
    workflows = workflow("FedAvg", num_rounds=True, min_clients=5)
    parts = {"meta": SITES, "workflows": workflows, "tensor_download_chunk_size": 1000}
    write_job(converted(tmp_path / "in", **parts), tmp_path / "new")
    problems = {each.key: str(each) for each in open_problems(tmp_path / "new")}
    assert "a whole number from 1 to 1000000000" in problems["rounds"]
    assert "nearest: 992 or 1008" in problems["streaming.tensor_download_chunk_size"]


def test_files_are_copied_from_the_folder_alone_and_never_unpickled(tmp_path):
    root, outside = tmp_path / "in", tmp_path / "big.safetensors"
    (root / "app" / "custom").mkdir(parents=True)
    for path in (root / "start.safetensors", outside, root / "app" / "custom" / "job.conf"):
        path.write_bytes(b"theirs")
    for value, copied in (("start.safetensors", True), (str(outside), False)):
        parts = component("PTFileModelPersistor", source_ckpt_file_full_name=value)
        conversion = converted(root, components=parts)
        assert conversion.values["model"] == {"initial": value}
        # Code cannot take the place of the job's own files.
        assert list(conversion.files) == ([value] if copied else [])
    np.save(root / "start.npy", np.arange(6, dtype=np.int16).reshape(2, 3))
    parts = component("NPModelPersistor", source_npy_file_full_name="start.npy")
    write_job(converted(root, components=parts), tmp_path / "new")
    with np.load(tmp_path / "new" / "initial.npz") as arrays:
        assert arrays["numpy_key"].tolist() == [[0, 1, 2], [3, 4, 5]]
    for content in (b"\x93NUMPY", b"\x80\x04K\x01.", b"PK\x03\x04"):
        (root / "start.npy").write_bytes(content)
        refused = lost(converted(root, components=parts))
        assert "components[0].args.source_npy_file_full_name" in refused
