"""Job folders of NVFlare become jobs, and a note tells of each setting that does not."""

from typing import Any

import pytest
from nvflare_jobs import FOLDERS

from flstream.job import load_job
from flstream.job.hocon import read_hocon
from flstream.recipe import nvflare_table
from flstream.recipe.nvflare import convert, write_job
from flstream.workflows.registry import BUILT_IN

TRAIN = {"script": "train.py", "alias": "nvflare"}
ORDER = {"order": "random_without_same_in_a_row"}
STREAMING = {
    "tensor_download_chunk_size": 2097152,
    "np_download_chunk_size": 2097152,
    "streaming_per_request_timeout": 600,
}
BEST = {"key_metric": "val_loss", "key_metric_mode": "min"}
# What each folder becomes, key by key; "document" is the config of NVFlare's own guide.
VALUES: dict[str, dict[str, Any]] = {
    "document": {
        "rounds": 3,
        "train": {"alias": "nvflare"},
        "streaming": STREAMING,
        "workflow": [
            {"type": "swarm", "args": {"start_task_timeout": 300, "progress_timeout": 7200}},
            {"type": "cross_site", "args": {"eval_task_timeout": 1200}},
        ],
    },
    "document_native": {
        "train": {"alias": "nvflare"},
        "streaming": {"tensor_download_chunk_size": 0, "np_download_chunk_size": 0},
    },
    "cyclic_relay": {
        "rounds": 2,
        "clients": {"count": 2},
        "model": {"factory": "net:Net"},
        "train": {**TRAIN, "args": "--lr 0.02"},
        "workflow": {"type": "cyclic", "args": ORDER},
    },
    "hello_numpy": {
        "name": "hello-arrays",
        "rounds": 1,
        "clients": {"count": 2, "round_timeout": 120},
        "model": {"initial": "initial.npz"},
        "train": {"script": "src/add.py", "alias": "nvflare", "exchange_format": "numpy"},
        "workflow": {"type": "fedavg"},
        "streaming": {"np_download_chunk_size": 1048576},
    },
    "scatter_gather": {
        "name": "small-net",
        "rounds": 1,
        "clients": {"count": 2},
        "model": {"factory": "net:Net", "args": {"width": 6}},
        "train": {**TRAIN, "args": "--lr 0.1"},
        "workflow": {"type": "fedavg"},
        "aggregation": {"exclude": ["steps"]},
    },
    "template_fedavg": {
        "name": "template-fedavg",
        "rounds": 2,
        "stop_when": "val_loss < 0.0001",
        "patience": 4,
        "clients": {"count": 2},
        "model": {"factory": "net:Net"},
        "train": {**TRAIN, "args": "--lr 0.05 --epochs 2", "exchange_format": "pytorch"},
        "workflow": {"type": "fedavg", "args": BEST},
        "tracking": {"type": "tensorboard"},
    },
    "two_apps": {
        "name": "wards",
        "rounds": 1,
        "clients": {
            "names": ["ward-1", "clinic-2", "clinic-3"],
            "min_updates": 2,
            "round_timeout": 600,
            "wait_after_min": 30,
        },
        "model": {"factory": "net:Net", "args": {"width": 5}},
        "train": {**TRAIN, "args": "--lr 0.1 --epochs 1", "exchange_format": "pytorch"},
        "workflow": {"type": "fedavg"},
        "aggregation": {"weights": {"ward-1": 2.0, "clinic-2": 1.0}},
        "streaming": {"tensor_download_chunk_size": 4194304, "streaming_per_request_timeout": 300},
    },
    "unknown_parts": {
        "clients": {"count": 2},
        "train": {"alias": "nvflare"},
        "filters": {  # those of the server's side first
            "up": [
                {"type": "exclude_vars", "exclude_vars": ["bn.mean", "bn.var"]},
                {"type": "percentile_privacy", "percentile": 10, "gamma": 0.01},
            ]
        },
    },
}
LOST = {
    "scatter_gather": ["workflows[0].args.train_timeout = 0"],
    "two_apps": [
        'mandatory_clients = ["ward"]',
        'resource_spec = {"ward": {"num_of_gpus": 1}}',
        'executors[0].executor.args.command = "python3 -u custom/train.py --lr 0.1 --epochs 2"',
    ],
    "unknown_parts": [
        'scope = "private"',
        "components[0] parts.splitter.Splitter",
        "components[1] nvflare.app_opt.tracking.wandb.wandb_receiver.WandBReceiver",
        "workflows[0] nvflare.app_common.workflows.statistics_controller.StatisticsController",
        "workflows[1] parts.controllers.Tournament",
        "components[0] parts.learner.Learner",
        "executors[0].executor nvflare.app_common.executors.model_learner_executor.ModelLearnerEx",
        "task_result_filters[0].filters[1] parts.filters.Rounding",
    ],
}
NOT_WHOLE = ("document", "document_native", "unknown_parts")


@pytest.mark.parametrize("name", sorted(path.name for path in FOLDERS.iterdir()))
def test_a_folder_becomes_these_keys_and_notes(nvflare_folders, tmp_path, name):
    conversion = convert(nvflare_folders / name)
    assert conversion.values == {"name": name, **VALUES[name]}
    notes = [note for each in conversion.notes.values() for note in each]
    for note, begin in zip(notes, LOST.get(name, []), strict=True):
        assert note.startswith(begin)
    write_job(conversion, tmp_path / "new")
    assert read_hocon(tmp_path / "new" / "job.conf").values == conversion.values
    text = (tmp_path / "new" / "job.conf").read_text()
    assert [note for note in notes if f"#     {note}\n" not in text] == []
    if name not in NOT_WHOLE:
        pytest.importorskip("tensorboard")
        load_job(tmp_path / "new" / "job.conf")


def test_every_name_stands_once_in_the_tables_and_workflows_are_those_that_there_are():
    classes = [
        *nvflare_table.WORKFLOWS,
        *nvflare_table.SECTIONS,
        *nvflare_table.FILTERS,
        *nvflare_table.NOT_NEEDED,
        *nvflare_table.NO_COUNTERPART,
    ]
    for tables in (classes, [*nvflare_table.ARGUMENTS, *nvflare_table.LOST_ARGUMENTS]):
        names = " ".join(tables).split()
        assert len(names) == len(set(names))
        assert nvflare_table.NEEDLESS.isdisjoint({*names} - {"min_clients"})
    assert set(nvflare_table.WORKFLOWS.values()) <= BUILT_IN.keys()
