"""Job folders of NVFlare become jobs, and each of their settings is accounted for."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from nvflare_jobs import FOLDERS

from flstream.job import job_keys, load_job
from flstream.job.hocon import read_hocon
from flstream.recipe.nvflare import Conversion, convert, write_job
from flstream.recipe.nvflare.controllers import CONTROLLERS
from flstream.workflows.registry import BUILT_IN

RUNNABLE = ("scatter_gather", "template_fedavg", "hello_numpy", "two_apps", "cyclic_relay")
NAMES = sorted(path.name for path in FOLDERS.iterdir())
KEY = re.compile(r"[a-z_]+(\.[a-z_]+)*")


def test_apps_of_several_sites_become_names_and_arguments_of_each(nvflare_folders):
    conversion = convert(nvflare_folders / "two_apps")
    epochs = {"site-ward-1": "2", "clinic-2": "1", "clinic-3": "1"}
    train = {"script": "train.py", "args": {"lr": "0.1"}, "alias": "nvflare"}
    chunks = {"tensor_download_chunk_size": 4194304, "streaming_per_request_timeout": 300}
    assert conversion.values == {
        "name": "wards",
        "rounds": 1,
        "clients": {
            "names": list(epochs),
            "args": {site: {"epochs": number} for site, number in epochs.items()},
            "min_updates": 2,
            "round_timeout": 600,
            "wait_after_min": 30,
        },
        "model": {"factory": "net:Net", "args": {"width": 5}},
        "train": {**train, "exchange_format": "pytorch"},
        "workflow": {"type": "fedavg"},
        "aggregation": {"weights": {"site-ward-1": 2.0, "clinic-2": 1.0}},
        "streaming": chunks,
    }
    assert len(conversion.files) == 2
    lost = [note.path for note in conversion.notes if note.is_lost]
    assert lost == ["resource_spec", "mandatory_clients"]


def test_what_is_not_known_is_listed_by_file_and_path(nvflare_folders):
    conversion = convert(nvflare_folders / "unknown_parts")
    lost = [(note.file, note.path, note.named) for note in conversion.notes if note.is_lost]
    client = "app/config/config_fed_client.json"
    assert len(lost) == 9
    assert ("meta.json", "scope", "") in lost
    assert (client, "components[0]", "parts.learner.Learner") in lost
    assert (client, "task_result_filters[0].filters[1]", "parts.filters.Rounding") in lost
    up = conversion.values["filters"]["up"]  # those of the server's side first
    assert [each["type"] for each in up] == ["exclude_vars", "percentile_privacy"]


def test_the_documents_example_converts_key_by_key(nvflare_folders, tmp_path):
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
    assert {controller.workflow for controller in CONTROLLERS.values()} <= BUILT_IN.keys()
    # Chunk sizes of 0 turn streaming off here, too.
    native = convert(nvflare_folders / "document_native")
    assert set(native.values["streaming"].values()) == {0}
    assert not any(note.is_lost for note in native.notes)


@pytest.mark.parametrize("name", NAMES)
def test_the_job_file_has_exactly_what_was_converted_and_noted(nvflare_folders, tmp_path, name):
    root = nvflare_folders / name
    conversion = convert(root, "new")
    write_job(conversion, tmp_path / "new")
    assert read_hocon(tmp_path / "new" / "job.conf").values == conversion.values
    if name in RUNNABLE:
        pytest.importorskip("tensorboard")
        load_job(tmp_path / "new" / "job.conf")
    for path in [*root.rglob("meta.*"), *root.rglob("config_fed_*")]:
        is_json = path.suffix == ".json"
        content = json.loads(path.read_text()) if is_json else read_hocon(path).values
        if path.name.startswith("config"):
            check_accounts(conversion, path.relative_to(root).as_posix(), content)
    for note in conversion.notes:
        for key in note.word.split(", ") if note.kind == "becomes" else ():
            if KEY.fullmatch(key) and key in job_keys():
                assert has(conversion.values, key.split(".")), (note.path, key)


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


def has(values: Any, parts: list[str]) -> bool:
    if not parts:
        return True
    if isinstance(values, list):
        return any(has(each, parts) for each in values)
    return isinstance(values, dict) and parts[0] in values and has(values[parts[0]], parts[1:])
