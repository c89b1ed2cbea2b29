"""What becomes of single settings of NVFlare's configurations."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flstream.recipe.nvflare import Conversion, convert, open_problems, write_job

SERVER, CLIENT = "config_fed_server.json", "config_fed_client.json"


def converted(root: Path, **parts: Any) -> Conversion:
    """What a folder with one app becomes.

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


def workflow(name: str, **args: Any) -> list[dict[str, Any]]:
    return [{"id": "w", "name": name, "args": args}]


def component(name: str, **args: Any) -> list[dict[str, Any]]:
    return [{"id": "c", "name": name, "args": args}]


def executor(name: str, **args: Any) -> dict[str, Any]:
    return {"executors": [{"tasks": ["train"], "executor": {"name": name, "args": args}}]}


def launcher(command: str) -> dict[str, Any]:
    return {"components": component("SubprocessLauncher", script=command)}


def lost(conversion: Conversion) -> dict[str, str]:
    """Words on what has no counterpart, by place."""
    return {note.path: note.word for note in conversion.notes if note.is_lost}


SITES = {"name": "it", "deploy_map": {"app": ["server", "site-1", "site-2", "site-3"]}}


def test_a_sample_of_the_sites_is_one_here_too(tmp_path: Path) -> None:
    conversion = converted(tmp_path, meta=SITES, workflows=workflow("FedAvg", num_clients=2))
    assert conversion.values["clients"] == {"count": 3, "per_round": 2}
    conversion = converted(tmp_path, meta=SITES, workflows=workflow("FedAvg", num_clients=9))
    assert conversion.values["clients"] == {"count": 3}


def test_as_many_sites_as_are_needed_where_none_are_named(tmp_path: Path) -> None:
    meta = {"name": "it", "min_clients": 2, "deploy_map": {"app": ["@ALL"]}}
    args = {"min_clients": "{sites}", "num_rounds": 2}
    conversion = converted(
        tmp_path, meta=meta, sites=4, workflows=workflow("ScatterAndGather", **args)
    )
    assert conversion.values["clients"] == {"count": 4}
    assert lost(conversion) == {}


def test_more_answers_than_there_are_sites_cannot_be_asked_for(tmp_path: Path) -> None:
    conversion = converted(
        tmp_path, meta=SITES, workflows=workflow("ScatterAndGather", min_clients=5)
    )
    assert lost(conversion) == {"workflows[0].args.min_clients": "the job has 3 sites"}


def test_rounds_that_are_not_given_are_nvflares(tmp_path: Path) -> None:
    assert converted(tmp_path, workflows=workflow("FedAvg")).values["rounds"] == 5
    assert "rounds" not in converted(tmp_path, workflows=workflow("SwarmServerController")).values


@pytest.mark.parametrize("rounds", ["many", 0, True, 2.5, [3]])
def test_a_value_that_a_key_does_not_take_is_listed(tmp_path: Path, rounds: object) -> None:
    conversion = converted(tmp_path, workflows=workflow("FedAvg", num_rounds=rounds))
    assert lost(conversion) == {
        "workflows[0].args.num_rounds": "rounds must be a whole number of at least 1"
    }


def test_the_first_of_two_values_is_taken_and_the_other_listed(tmp_path: Path) -> None:
    both = [*workflow("FedAvg", num_rounds=2), *workflow("Cyclic", num_rounds=3)]
    conversion = converted(tmp_path, workflows=both)
    assert conversion.values["rounds"] == 2
    assert conversion.values["workflow"] == [{"type": "fedavg"}, {"type": "cyclic"}]
    assert lost(conversion) == {"workflows[1].args.num_rounds": "rounds is 2 already"}


@pytest.mark.parametrize(
    ("selector", "args"),
    [
        ({}, {"key_metric": "val_accuracy"}),
        ({"key_metric": "f1"}, {"key_metric": "f1"}),
        ({"key_metric": "val_loss"}, {"key_metric": "val_loss", "key_metric_mode": "min"}),
        (
            {"key_metric": "error", "negate_key_metric": True},
            {"key_metric": "error", "key_metric_mode": "min"},
        ),
    ],
)
def test_a_selector_names_the_key_metric(
    tmp_path: Path, selector: dict[str, Any], args: dict[str, Any]
) -> None:
    conversion = converted(
        tmp_path,
        workflows=workflow("FedAvg", stop_cond="loss < 0.1"),
        components=component("IntimeModelSelector", **selector),
    )
    assert conversion.values["workflow"]["args"] == args


def test_a_condition_names_the_key_metric_where_no_selector_does(tmp_path: Path) -> None:
    conversion = converted(tmp_path, workflows=workflow("FedAvg", stop_cond="error<=2", patience=3))
    assert conversion.values["stop_when"] == "error<=2"
    assert conversion.values["patience"] == 3
    args = {"key_metric": "error", "key_metric_mode": "min"}
    assert conversion.values["workflow"]["args"] == args


def test_what_is_excluded_in_several_places_is_excluded_once(tmp_path: Path) -> None:
    conversion = converted(
        tmp_path,
        workflows=workflow("FedAvg", exclude_vars="bn"),
        components=[
            *component("PTFileModelPersistor", exclude_vars="bn|head"),
            *component("InTimeAccumulateWeightedAggregator", exclude_vars="bn"),
            *component("AccumulateWeightedAggregator", exclude_vars={"a": "b"}),
            *component("DXOAggregator", exclude_vars="("),
        ],
    )
    assert conversion.values["aggregation"] == {"exclude": ["bn", "bn|head"]}
    assert list(lost(conversion)) == ["components[2].args.exclude_vars", "components[3]"]


def test_the_servers_sgd_is_fedavgm(tmp_path: Path) -> None:
    args = {"optimizer_args": {"path": "torch.optim.SGD", "args": {"lr": 0.5, "momentum": 0.6}}}
    conversion = converted(tmp_path, workflows=workflow("FedOpt", **args))
    assert conversion.values["server_optimizer"] == {
        "type": "fedavgm",
        "learning_rate": 0.5,
        "beta_1": 0.6,
    }
    args = {"optimizer_args": {"path": "torch.optim.Adam"}, "lr_scheduler_args": {"path": "x.Y"}}
    conversion = converted(tmp_path, workflows=workflow("FedOpt", **args))
    assert "server_optimizer" not in conversion.values
    assert len(lost(conversion)) == 2


@pytest.mark.parametrize(
    ("command", "train"),
    [
        ("python3 -u custom/train.py", {"script": "train.py"}),
        ("python custom/train.py --a 'b c'", {"script": "train.py", "args": "--a 'b c'"}),
        (
            "torchrun --nproc_per_node=2 custom/train.py --a 1",
            {"script": "train.py", "args": "--a 1", "command": "torchrun --nproc_per_node=2"},
        ),
    ],
)
def test_a_launcher_is_a_script_with_its_command(
    tmp_path: Path, command: str, train: dict[str, str]
) -> None:
    conversion = converted(tmp_path, client=launcher(command))
    assert conversion.values["train"] == {**train, "alias": "nvflare"}


@pytest.mark.parametrize("command", ["bash custom/run.sh", "python3 'custom/train.py", "", 3])
def test_a_command_that_starts_no_python_file_is_listed(tmp_path: Path, command: Any) -> None:
    conversion = converted(tmp_path, client=launcher(command))
    assert conversion.values["train"] == {"alias": "nvflare"}
    assert bool(lost(conversion)) == bool(command)


@pytest.mark.parametrize(
    ("name", "args", "expected"),
    [
        ("PTInProcessClientAPIExecutor", {}, None),
        ("PTInProcessClientAPIExecutor", {"params_exchange_format": "numpy"}, "numpy"),
        ("InProcessClientAPIExecutor", {}, "numpy"),
        ("ClientAPILauncherExecutor", {"params_exchange_format": "pytorch"}, "pytorch"),
        ("ClientAPIExecutor", {"params_exchange_format": "raw"}, "numpy"),
        ("ClientAPIExecutor", {"server_expected_format": "pytorch"}, None),
        ("PTInProcessClientAPIExecutor", {"params_exchange_format": "keras"}, None),
    ],
)
def test_a_script_receives_what_its_executor_gives_it(
    tmp_path: Path, name: str, args: dict[str, str], expected: str | None
) -> None:
    conversion = converted(tmp_path, client=executor(name, **args))
    assert conversion.values["train"].get("exchange_format") == expected
    assert bool(lost(conversion)) == ("keras" in args.values())


def test_one_script_is_that_of_all_sites(tmp_path: Path) -> None:
    meta = {"name": "it", "deploy_map": {"a": ["server", "x"], "b": ["y"], "c": ["z"]}}
    for app, script, code in (("a", "one.py", "1"), ("b", "two.py", "2"), ("c", "one.py", "3")):
        for folder in ("config", "custom"):
            (tmp_path / app / folder).mkdir(parents=True)
        client = executor("PTInProcessClientAPIExecutor", task_script_path=script)
        (tmp_path / app / "config" / CLIENT).write_text(json.dumps(client))
        (tmp_path / app / "custom" / script).write_text(code)
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    conversion = convert(tmp_path)
    assert conversion.values["train"]["script"] == "one.py"
    assert {name: path.read_text() for name, path in conversion.files.items()} == {
        "one.py": "1",
        "two.py": "2",
    }
    place = "executors[0].executor.args.task_script_path"
    assert [(note.file, note.path, note.word) for note in conversion.notes if note.is_lost] == [
        (f"b/config/{CLIENT}", place, "train.script is one.py; there is one for all sites"),
        (
            f"c/config/{CLIENT}",
            place,
            "train.script is another one.py, of x; there is one for all sites",
        ),
        ("c/custom/one.py", "", "not copied: a/custom/one.py differs, and is"),
    ]


def test_arguments_without_names_are_those_of_the_first_site(tmp_path: Path) -> None:
    meta = {"name": "it", "deploy_map": {"a": ["server", "x"], "b": ["y"]}}
    for app, args in (("a", "--lr 1"), ("b", "-v --lr 2")):
        (tmp_path / app).mkdir()
        client = executor(
            "PTInProcessClientAPIExecutor", task_script_path="t.py", task_script_args=args
        )
        (tmp_path / app / CLIENT).write_text(json.dumps(client))
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    conversion = convert(tmp_path)
    assert conversion.values["train"]["args"] == "--lr 1"
    [word] = lost(conversion).values()
    assert word.startswith("train.args is that of x: the arguments of the script '-v --lr 2'")


def test_a_variable_of_a_site_in_the_arguments_is_listed(tmp_path: Path) -> None:
    client = executor(
        "PTInProcessClientAPIExecutor",
        task_script_path="train.py",
        task_script_args="--data {WORKSPACE}/{SITE_NAME}",
    )
    conversion = converted(tmp_path, client=client)
    assert conversion.values["train"]["args"] == "--data {WORKSPACE}/{SITE_NAME}"
    [word] = lost(conversion).values()
    assert word.startswith("{WORKSPACE}, {SITE_NAME} is not filled in")


@pytest.mark.parametrize(
    ("model", "factory"),
    [
        ({"path": "net.Net"}, {"factory": "net:Net"}),
        ({"class_path": "a.b.Net", "args": {"n": 1}}, {"factory": "a.b:Net", "args": {"n": 1}}),
        ("a.Net", {"factory": "a:Net"}),
        ("own", {"factory": "parts.net:Net", "args": {"width": 2}}),
        ({"path": "Net"}, None),
        ({"n": 1}, None),
        ([1], None),
    ],
)
def test_a_persistors_model_is_a_factory(
    tmp_path: Path, model: Any, factory: dict[str, Any] | None
) -> None:
    conversion = converted(
        tmp_path,
        components=[
            {"id": "own", "path": "parts.net.Net", "args": {"width": 2}},
            *component("PTFileModelPersistor", model=model),
        ],
    )
    assert conversion.values.get("model") == factory
    listed = [path for path in lost(conversion) if path.startswith("components[1]")]
    assert bool(listed) == (factory is None)
    assert ("components[0]" in lost(conversion)) == (model != "own")


def test_a_checkpoint_in_the_folder_is_copied_and_one_elsewhere_named(tmp_path: Path) -> None:
    root, outside = tmp_path / "in", tmp_path / "big.safetensors"
    root.mkdir()
    for path in (root / "start.safetensors", outside):
        path.write_bytes(b"weights")

    def model_of(value: str) -> tuple[Any, dict[str, Path]]:
        parts = component("PTFileModelPersistor", source_ckpt_file_full_name=value)
        conversion = converted(root, components=parts)
        return conversion.values["model"], dict(conversion.files)

    assert model_of("start.safetensors") == (
        {"initial": "start.safetensors"},
        {"start.safetensors": root / "start.safetensors"},
    )
    assert model_of(str(outside)) == ({"initial": str(outside)}, {})
    # What lies beside the job folder is not part of it.
    assert model_of("../big.safetensors") == ({"initial": "../big.safetensors"}, {})
    write_job(convert(root), tmp_path / "sub" / "new")
    keys = {problem.key for problem in open_problems(tmp_path / "sub" / "new")}
    assert "model.initial" in keys


def test_an_array_in_a_file_is_a_file_of_arrays(tmp_path: Path) -> None:
    np.save(tmp_path / "start.npy", np.arange(6, dtype=np.int16).reshape(2, 3))
    parts = component("NPModelPersistor", source_npy_file_full_name="start.npy")
    conversion = converted(tmp_path, components=parts)
    write_job(conversion, tmp_path / "new")
    with np.load(tmp_path / "new" / "initial.npz") as arrays:
        assert arrays["numpy_key"].dtype == np.int16
        assert arrays["numpy_key"].tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY", b"\x80\x04K\x01.", b"PK\x03\x04"])
def test_a_file_that_is_no_array_is_listed_and_never_unpickled(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "start.npy").write_bytes(content)
    parts = component("NPModelPersistor", source_npy_file_full_name="start.npy")
    conversion = converted(tmp_path, components=parts)
    assert "components[0].args.source_npy_file_full_name" in lost(conversion)


def test_numpy_without_a_model_begins_as_in_nvflare(tmp_path: Path) -> None:
    conversion = converted(tmp_path, components=component("NPModelPersistor"))
    array = conversion.arrays["initial.npz"]["numpy_key"]
    assert array.tolist() == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    assert conversion.values["train"]["exchange_format"] == "numpy"
    ragged = component("NPModelPersistor", initial_model=[[1], [2, 3]])
    assert list(lost(converted(tmp_path, components=ragged))) == [
        "components[0].args.initial_model"
    ]


def test_code_cannot_take_the_place_of_the_jobs_own_files(tmp_path: Path) -> None:
    custom = tmp_path / "in" / "app" / "custom"
    custom.mkdir(parents=True)
    for name in ("job.conf", "initial.npz", "more.py"):
        (custom / name).write_text("theirs")
    conversion = converted(tmp_path / "in", components=component("NPModelPersistor"))
    assert list(conversion.files) == ["more.py"]
    files = [note.file for note in conversion.notes if note.is_lost]
    assert files == ["app/custom/initial.npz", "app/custom/job.conf"]
    written = write_job(conversion, tmp_path / "new")
    assert written == ["initial.npz", "job.conf", "more.py"]


def test_one_tracker_is_taken_and_the_other_listed(tmp_path: Path) -> None:
    both = [*component("MLflowReceiver", tracking_uri="x"), *component("TBAnalyticsReceiver")]
    conversion = converted(tmp_path, components=both)
    assert conversion.values["tracking"] == {"type": "mlflow"}
    assert lost(conversion) == {
        "components[0].args.tracking_uri": "the store is mlflow/mlflow.db of the run directory",
        "components[1]": 'tracking.type is "mlflow" already',
    }


def test_the_sites_part_of_a_swarm_says_how_many_answer_and_when(tmp_path: Path) -> None:
    args = {"min_responses_required": 2, "wait_time_after_min_resps_received": 30}
    conversion = converted(
        tmp_path,
        meta=SITES,
        workflows=workflow("SwarmServerController", num_rounds=3, aggr_clients=["site-1"]),
        client=executor("SwarmClientController", learn_task_timeout=60, **args),
    )
    assert conversion.values["clients"] == {
        "count": 3,
        "min_updates": 2,
        "round_timeout": 60,
        "wait_after_min": 30,
    }
    assert conversion.values["workflow"] == {"type": "swarm", "args": {"aggregators": ["site-1"]}}


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ({"aggr_clients": "@ALL"}, "all sites may fold"),
        ({"starting_client": "site-2"}, "the seed draws"),
        ({"train_clients": ["site-1"]}, "no counterpart: all sites of a round train"),
        ({"aggr_clients": 3}, "no counterpart: workflow.args.aggregators is a list of sites"),
    ],
)
def test_what_a_swarm_is_asked_is_said_one_by_one(
    tmp_path: Path, argument: dict[str, object], said: str
) -> None:
    conversion = converted(
        tmp_path, meta=SITES, workflows=workflow("SwarmServerController", num_rounds=3, **argument)
    )
    assert conversion.values["workflow"] == {"type": "swarm"}
    (name,) = argument
    (note,) = [each for each in conversion.notes if each.path.endswith(name)]
    assert said in note.text


def test_a_component_that_is_disabled_does_nothing(tmp_path: Path) -> None:
    disabled = [{**each, "disabled": True} for each in component("TBAnalyticsReceiver")]
    conversion = converted(tmp_path, components=disabled)
    assert "tracking" not in conversion.values
    [note] = [note for note in conversion.notes if note.path == "components[0]"]
    assert (note.kind, note.word) == ("not needed", "it is disabled")


def test_a_template_without_a_folder_for_its_app_is_a_job_too(tmp_path: Path) -> None:
    meta = {"name": "flat", "deploy_map": {"app": ["@ALL"]}}
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    (tmp_path / "config_fed_server.conf").write_text("workflows = [{name = FedAvg, id = w}]")
    (tmp_path / "info.md").write_text("of no use")
    conversion = convert(tmp_path)
    assert (conversion.name, conversion.values["rounds"]) == ("flat", 5)
    assert [note.file for note in conversion.notes if note.is_lost] == ["info.md"]


def test_an_app_of_sites_alone_does_not_configure_the_server(tmp_path: Path) -> None:
    meta = {"name": "it", "deploy_map": {"a": ["server"], "b": ["x", "y"]}}
    for app, rounds in (("a", 2), ("b", 3)):
        (tmp_path / app).mkdir()
        server = {"workflows": workflow("FedAvg", num_rounds=rounds)}
        (tmp_path / app / SERVER).write_text(json.dumps(server))
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    conversion = convert(tmp_path)
    assert conversion.values["rounds"] == 2
    [note] = [note for note in conversion.notes if note.file == f"b/{SERVER}"]
    assert note.word == "its app is not deployed to the server"


def test_streaming_keys_have_their_own_rules(tmp_path: Path) -> None:
    conversion = converted(
        tmp_path,
        tensor_download_chunk_size=1000,
        np_download_chunk_size=4096,
        streaming_per_request_timeout=60,
        get_task_timeout=300,
        client={"tensor_download_chunk_size": 2048, "np_download_chunk_size": 1024},
    )
    assert conversion.values["streaming"] == {
        "tensor_download_chunk_size": 2048,
        "np_download_chunk_size": 4096,
        "streaming_per_request_timeout": 60,
    }
    words = lost(conversion)
    assert words["np_download_chunk_size"] == "streaming.np_download_chunk_size is 4096 already"
    assert "nearest: 992 or 1008" in words["tensor_download_chunk_size"]


def test_a_second_workflow_that_samples_another_number_of_sites_is_listed(tmp_path: Path) -> None:
    first = workflow("FedAvg", num_clients=3, num_rounds=2)
    second = workflow("FedAvg", num_clients=1, num_rounds=2)
    conversion = converted(tmp_path, meta=SITES, workflows=[*first, *second])
    assert conversion.values["clients"] == {"count": 3}
    assert lost(conversion) == {
        "workflows[1].args.num_clients": "clients.per_round is for all workflows, and 3 already"
    }
