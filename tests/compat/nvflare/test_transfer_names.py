"""The Tensor Downloader's guide, with the first name of its imports changed."""

from contextlib import ExitStack

import pytest
import torch
from flstream.compat.nvflare.app_opt.pt.decomposers import TensorDecomposer
from flstream.compat.nvflare.app_opt.pt.tensor_downloader import (
    TensorConsumer,
    TensorDownloadable,
    add_tensors,
    download_tensors,
)
from flstream.compat.nvflare.fuel.f3.streaming.obj_downloader import ObjectDownloader
from flstream.compat.nvflare.fuel.utils import fobs

from flstream.errors import UsageError
from flstream.streaming import DownloadService, Receiver, Signal, add_payload, download_payload
from flstream.transport.channel import pipe


@pytest.fixture
def ends():
    """A downloader to one receiver, and that."""
    with ExitStack() as stack:
        service = stack.enter_context(DownloadService())
        ours, theirs = pipe("server", "site-1")
        service.attach(ours, "site-1")
        cell = stack.enter_context(Receiver(theirs, "server"))
        yield service, ObjectDownloader(service, ["site-1"]), cell


def test_the_low_level_snippet_runs_as_printed(ends):
    _, downloader, cell = ends
    model, server_fqcn, abort_signal = torch.nn.Linear(3, 2), "server", Signal()
    sent = {name: value.clone() for name, value in model.state_dict().items()}

    # Server side: Register tensors for download
    ref_id = add_tensors(
        downloader=downloader,
        tensors=model.state_dict(),
        max_chunk_size=2 * 1024 * 1024,  # 2MB chunks
    )

    # Client side: Download tensors incrementally
    status, state_dict = download_tensors(
        from_fqcn=server_fqcn,
        ref_id=ref_id,
        per_request_timeout=30.0,
        cell=cell,
        secure=False,
        optional=False,
        abort_signal=abort_signal,
    )

    # Load into model
    model.load_state_dict(state_dict)
    assert isinstance(ref_id, str)
    assert not status
    assert all(torch.equal(model.state_dict()[name], sent[name]) for name in sent)


def test_an_error_is_a_text_and_the_tensors_are_none(ends, caplog):
    _, _, cell = ends
    how = {"per_request_timeout": 5.0, "cell": {"server": cell}}
    error, tensors = download_tensors("server", "00" * 16, **how)
    assert tensors is None
    assert error in caplog.text
    assert error
    caplog.clear()
    assert download_tensors("server", "00" * 16, **how, optional=True)[0] == error
    assert caplog.text == ""


def test_tensors_go_to_a_callback_as_they_come(ends):
    _, downloader, cell = ends
    tensors = {"a": torch.ones(3), "b": torch.zeros(2)}
    ref_id = downloader.add_object(TensorDownloadable(tensors, 4096))

    def received(arrived, factor):
        return {name: value * factor for name, value in arrived.items()}

    error, taken = download_tensors(
        "server", ref_id, 5.0, cell, tensors_received_cb=received, factor=2
    )
    assert error == ""
    assert taken["a"].tolist() == [2.0, 2.0, 2.0]


def test_items_are_safetensors_files():
    offered = TensorDownloadable({"a": torch.ones(3), "b": torch.zeros(2)}, 4096)
    items = [offered.produce_item(index) for index in range(offered.get_item_count())]
    result = TensorConsumer(None, {}).consume_items(items, None)
    assert {name: value.tolist() for name, value in result.items()} == {
        "a": [1.0, 1.0, 1.0],
        "b": [0.0, 0.0],
    }
    decomposer = TensorDecomposer()
    data = decomposer.native_decompose(torch.ones(2))
    assert decomposer.native_recompose(data).tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("change", "words"),
    [({"secure": True}, "not encrypted"), ({"from_fqcn": "other"}, "cell leads to server")],
)
def test_what_cannot_be_kept_is_refused(ends, change, words):
    how = {"from_fqcn": "server", "ref_id": "00" * 16, "per_request_timeout": 5.0, "cell": ends[2]}
    with pytest.raises(UsageError, match=words):
        download_tensors(**{**how, **change})


class Point:
    def __init__(self, x):
        self.x = x


class PointDecomposer:
    def supported_type(self):
        return Point

    def decompose(self, target, manager=None):
        return [target.x]

    def recompose(self, data, manager=None):
        return Point(data[0])


def test_types_that_are_registered_travel_in_payloads(ends):
    service, _, cell = ends
    fobs.register(TensorDecomposer)
    for _ in range(2):  # NVFlare lets a type be registered again
        fobs.register(PointDecomposer)
    ref = add_payload(service, {"at": Point(3), "w": torch.ones(2)}, ["site-1"])
    status, value = download_payload(cell, ref.id)
    assert status.ok
    assert (value["at"].x, value["w"].tolist()) == (3, [1.0, 1.0])


def test_job_snippets_of_the_guide_make_jobs(tmp_path, monkeypatch):
    from flstream.compat.nvflare.recipe.fedavg import FedAvgRecipe

    from flstream.compat.nvflare import FedJob

    recipe = FedAvgRecipe(
        name="my_job",
        num_rounds=10,
        min_clients=2,
        train_script="train.py",
    )
    recipe.add_server_config({
        "np_download_chunk_size": 2097152,
        "tensor_download_chunk_size": 2097152,
        "streaming_per_request_timeout": 600
    })  # fmt: skip
    job = FedJob(name="my_job")
    job.to_server({"np_download_chunk_size": 0, "tensor_download_chunk_size": 0})
