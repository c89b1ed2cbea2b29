"""Job folders of NVFlare become jobs, and each of their settings is accounted for."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nvflare_jobs import FOLDERS

from flstream.job import job_keys, load_job
from flstream.job.hocon import read_hocon
from flstream.recipe.nvflare import Conversion, convert, open_problems, write_job
from flstream.recipe.nvflare.components import COMPONENTS, FILTERS
from flstream.recipe.nvflare.controllers import CONTROLLERS
from flstream.recipe.nvflare.executors import EXECUTORS
from flstream.workflows.registry import BUILT_IN

RUNNABLE = ("scatter_gather", "template_fedavg", "hello_numpy", "two_apps", "cyclic_relay")
NAMES = sorted(path.name for path in FOLDERS.iterdir())
KEY = re.compile(r"[a-z_]+(\.[a-z_]+)*")


def note_on(conversion: Conversion, path: str, file: str = "") -> list[str]:
    """The verdicts on one place, as kind and word."""
    return [
        f"{note.kind}: {note.word}"
        for note in conversion.notes
        if note.path == path and note.file.endswith(file)
    ]


def test_a_scatter_and_gather_in_json_becomes_fedavg(nvflare_folders: Path) -> None:
    assert convert(nvflare_folders / "scatter_gather").values == {
        "name": "small-net",
        "rounds": 1,
        "clients": {"count": 2},
        "model": {"factory": "net:Net", "args": {"width": 6}},
        "train": {"script": "train.py", "args": "--lr 0.1", "alias": "nvflare"},
        "workflow": {"type": "fedavg"},
        "aggregation": {"exclude": ["steps"]},
    }


def test_a_template_with_variables_a_launcher_and_a_selector_becomes_fedavg(
    nvflare_folders: Path,
) -> None:
    conversion = convert(nvflare_folders / "template_fedavg")
    assert conversion.values == {
        "name": "template-fedavg",
        "rounds": 2,
        "stop_when": "val_loss < 0.0001",
        "patience": 4,
        "clients": {"count": 2},
        "model": {"factory": "net:Net"},
        "train": {
            "script": "train.py",
            "args": "--lr 0.05 --epochs 2",
            "alias": "nvflare",
            "exchange_format": "pytorch",
        },
        "workflow": {
            "type": "fedavg",
            "args": {"key_metric": "val_loss", "key_metric_mode": "min"},
        },
        "tracking": {"type": "tensorboard"},
    }
    # A variable of NVFlare's, and one of HOCON's.
    assert note_on(conversion, "app_script") == ["becomes: a part of components[0].args.script"]
    assert note_on(conversion, "rounds") == ["becomes: a part of ${rounds}"]
    assert note_on(conversion, "name") == ["becomes: name = template-fedavg, as names are here"]


def test_a_model_in_numpy_becomes_a_file_of_arrays(nvflare_folders: Path) -> None:
    conversion = convert(nvflare_folders / "hello_numpy")
    assert conversion.values == {
        "name": "hello-arrays",
        "rounds": 1,
        "clients": {"count": 2, "round_timeout": 120},
        "model": {"initial": "initial.npz"},
        "train": {"script": "add.py", "alias": "nvflare", "exchange_format": "numpy"},
        "workflow": {"type": "fedavg"},
        "streaming": {"np_download_chunk_size": 1048576},
    }
    array = conversion.arrays["initial.npz"]["numpy_key"]
    assert array.dtype == np.float32
    assert array.tolist() == [[1, 2], [3, 4]]
    # It imports src.step, which is found from the folder above it.
    assert set(conversion.files) == {"add.py", "src/add.py", "src/step.py"}


def test_apps_of_several_sites_become_names_and_arguments_of_each(nvflare_folders: Path) -> None:
    conversion = convert(nvflare_folders / "two_apps")
    assert conversion.values == {
        "name": "wards",
        "rounds": 1,
        "clients": {
            "names": ["site-ward-1", "clinic-2", "clinic-3"],
            "args": {
                "site-ward-1": {"epochs": "2"},
                "clinic-2": {"epochs": "1"},
                "clinic-3": {"epochs": "1"},
            },
            "min_updates": 2,
            "round_timeout": 600,
            "wait_after_min": 30,
        },
        "model": {"factory": "net:Net", "args": {"width": 5}},
        "train": {
            "script": "train.py",
            "args": {"lr": "0.1"},
            "alias": "nvflare",
            "exchange_format": "pytorch",
        },
        "workflow": {"type": "fedavg"},
        "aggregation": {"weights": {"site-ward-1": 2.0, "clinic-2": 1.0}},
        "streaming": {
            "tensor_download_chunk_size": 4194304,
            "streaming_per_request_timeout": 300,
        },
    }
    assert len(conversion.files) == 2
    lost = [note.path for note in conversion.notes if note.is_lost]
    assert lost == ["resource_spec", "mandatory_clients"]


def test_a_cyclic_controller_becomes_cyclic_with_its_order(nvflare_folders: Path) -> None:
    assert convert(nvflare_folders / "cyclic_relay").values == {
        "name": "cyclic_relay",
        "rounds": 2,
        "clients": {"count": 2},
        "model": {"factory": "net:Net"},
        "train": {"script": "train.py", "args": "--lr 0.02", "alias": "nvflare"},
        "workflow": {"type": "cyclic", "args": {"order": "random_without_same_in_a_row"}},
    }


def test_what_is_not_known_is_listed_by_file_and_path(nvflare_folders: Path) -> None:
    conversion = convert(nvflare_folders / "unknown_parts")
    lost = [(note.file, note.path, note.named) for note in conversion.notes if note.is_lost]
    server, client = (f"app/config/config_fed_{side}.json" for side in ("server", "client"))
    assert lost == [
        ("meta.json", "scope", ""),
        (
            server,
            "workflows[0]",
            "nvflare.app_common.workflows.statistics_controller.StatisticsController",
        ),
        (server, "workflows[1]", "parts.controllers.Tournament"),
        (server, "components[0]", "parts.splitter.Splitter"),
        (server, "components[1]", "nvflare.app_opt.tracking.wandb.wandb_receiver.WandBReceiver"),
        (
            client,
            "executors[0].executor",
            "nvflare.app_common.executors.model_learner_executor.ModelLearnerExecutor",
        ),
        (client, "components[0]", "parts.learner.Learner"),
        (client, "task_result_filters[0].filters[1]", "parts.filters.Rounding"),
        ("app/config/config_train.json", "", ""),
    ]
    assert conversion.values["filters"] == {
        "up": [
            {"type": "exclude_vars", "exclude_vars": ["bn.mean", "bn.var"]},
            {"type": "percentile_privacy", "percentile": 10, "gamma": 0.01},
        ]
    }


def test_nothing_that_has_no_counterpart_is_lost_from_the_job_file(
    nvflare_folders: Path, tmp_path: Path
) -> None:
    write_job(convert(nvflare_folders / "unknown_parts"), tmp_path / "new")
    text = (tmp_path / "new" / "job.conf").read_text()
    comments = [line for line in text.splitlines() if line.startswith("#")]
    for value in ('"pairs" = [[1, 2]]', '"folder" = "/tmp/splits/small"', '"digits" = 3'):
        assert any(value in line for line in comments), value
    assert {problem.key for problem in open_problems(tmp_path / "new")} == {
        "rounds",
        "model.factory",
        "train.script",
    }


def test_the_documents_example_converts_key_by_key(nvflare_folders: Path, tmp_path: Path) -> None:
    conversion = convert(nvflare_folders / "document")
    assert conversion.values == {
        "name": "document",
        "rounds": 3,
        "train": {"alias": "nvflare"},
        "streaming": {
            "tensor_download_chunk_size": 2097152,
            "np_download_chunk_size": 2097152,
            "streaming_per_request_timeout": 600,
        },
        "workflow": [
            {"type": "swarm", "args": {"start_task_timeout": 300, "progress_timeout": 7200}},
            {"type": "cross_site", "args": {"eval_task_timeout": 1200}},
        ],
    }
    assert not any(note.is_lost for note in conversion.notes)
    write_job(conversion, tmp_path / "new")
    written = read_hocon(tmp_path / "new" / "job.conf").values
    assert written["workflow"] == conversion.values["workflow"]


def test_chunk_sizes_of_0_turn_streaming_off_here_too(nvflare_folders: Path) -> None:
    conversion = convert(nvflare_folders / "document_native")
    assert conversion.values["streaming"] == {
        "tensor_download_chunk_size": 0,
        "np_download_chunk_size": 0,
    }
    assert not any(note.is_lost for note in conversion.notes)


def test_every_controller_becomes_a_workflow_that_there_is() -> None:
    assert {controller.workflow for controller in CONTROLLERS.values()} <= BUILT_IN.keys()


@pytest.mark.parametrize("name", RUNNABLE)
def test_a_converted_job_is_sound(nvflare_folders: Path, tmp_path: Path, name: str) -> None:
    pytest.importorskip("tensorboard")
    write_job(convert(nvflare_folders / name), tmp_path / "new")
    load_job(tmp_path / "new" / "job.conf")


@pytest.mark.parametrize("name", NAMES)
def test_the_job_file_has_exactly_what_was_converted(
    nvflare_folders: Path, tmp_path: Path, name: str
) -> None:
    conversion = convert(nvflare_folders / name, "new")
    write_job(conversion, tmp_path / "new")
    assert read_hocon(tmp_path / "new" / "job.conf").values == conversion.values


@pytest.mark.parametrize("name", NAMES)
def test_every_setting_of_a_folder_has_a_note(nvflare_folders: Path, name: str) -> None:
    root = nvflare_folders / name
    conversion = convert(root)
    for path in [*root.rglob("meta.*"), *root.rglob("config_fed_*")]:
        content = (
            json.loads(path.read_text()) if path.suffix == ".json" else read_hocon(path).values
        )
        check_accounts(conversion, path.relative_to(root).as_posix(), content)
    check_conversions(conversion)


def leaves(value: Any, path: str = "") -> Iterator[str]:
    """The paths of all plain values, and of what is empty."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from leaves(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and value:
        for at, inner in enumerate(value):
            yield from leaves(inner, f"{path}[{at}]")
    else:
        yield path


def check_accounts(conversion: Conversion, file: str, content: Mapping[str, Any]) -> None:
    """Check that each plain value of a file lies at or below the place of a note on it."""
    notes = {note.path: note for note in conversion.notes if note.file == file}
    for leaf in leaves(content):
        above = [path for path in notes if re.match(rf"{re.escape(path)}($|\.|\[)", leaf)]
        assert above, f"{file}: {leaf}"
        nearest = notes[max(above, key=len)]
        rest = leaf.removeprefix(nearest.path)
        # An object that is converted has its arguments converted one by one.
        if nearest.named and nearest.kind == "becomes" and file != "meta.json":
            is_model = nearest.word == "model.factory, model.args"
            assert not rest.startswith(".args.") or is_model, f"{file}: {leaf}"
            assert re.match(r"\.(id|path|name|args)\b", rest) or is_model, f"{file}: {leaf}"


def check_conversions(conversion: Conversion) -> None:
    """Check that each key that a note names is in the job."""
    for note in conversion.notes:
        for key in note.word.split(", ") if note.kind == "becomes" else ():
            if KEY.fullmatch(key) and key in job_keys():
                assert has(conversion.values, key.split(".")), (note.path, key)


def has(values: Any, parts: list[str]) -> bool:
    if not parts:
        return True
    if isinstance(values, list):
        return any(has(each, parts) for each in values)
    return isinstance(values, dict) and parts[0] in values and has(values[parts[0]], parts[1:])


WORDS = st.sampled_from(
    ["", "a", "train", "net.Net", "x.py", "--lr 1", "accuracy > 1", "é\n#", "{v}"]
)
PLAIN = st.none() | st.booleans() | st.integers(-3, 40) | st.floats(0, 9) | WORDS
VALUE = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(WORDS.filter(bool), inner, max_size=3)
    ),
    max_leaves=5,
)


def made(classes: Mapping[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Objects of known and unknown classes, with arguments that they know or do not."""

    def of(name: str) -> st.SearchStrategy[dict[str, Any]]:
        names = [*getattr(classes.get(name), "args", {}), "other"]
        return st.fixed_dictionaries(
            {
                "id": st.just(name.lower()),
                "path": st.sampled_from([f"nvflare.some.{name}", name, f"own.{name}"]),
                "args": st.dictionaries(st.sampled_from(names), VALUE, max_size=5),
            },
            optional={"extra": VALUE},
        )

    return st.sampled_from([*classes, "Unknown"]).flatmap(of)


def lists(classes: Mapping[str, Any]) -> st.SearchStrategy[list[dict[str, Any]]]:
    return st.lists(made(classes), max_size=2)


FILTER_LISTS = st.lists(
    st.fixed_dictionaries({"tasks": st.just(["train"]), "filters": lists(FILTERS)}), max_size=1
)
TOP = st.dictionaries(
    st.sampled_from(
        ["v", "num_rounds", "tensor_download_chunk_size", "get_task_timeout", "server", "a\nb"]
    ),
    VALUE,
    max_size=3,
).filter(lambda top: top.get("v") != "{v}")  # which is refused
EXECUTOR_LISTS = st.lists(
    st.fixed_dictionaries({"tasks": VALUE, "executor": made(EXECUTORS)}), max_size=2
)
SERVER = st.builds(
    lambda top, **parts: {**top, **parts},
    TOP,
    components=lists(COMPONENTS),
    workflows=lists(CONTROLLERS),
    executors=EXECUTOR_LISTS,
    task_result_filters=FILTER_LISTS,
    task_data_filters=FILTER_LISTS,
)


@given(config=SERVER)
def test_any_configuration_is_accounted_for_to_the_last_value(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    path = tmp_path / "config_fed_server.json"
    path.write_text(json.dumps(config))
    conversion = convert(path)
    check_accounts(conversion, path.name, config)
    check_conversions(conversion)
