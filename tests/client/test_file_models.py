"""A site that keeps its model in a file: same bits as in memory, and sentences for misuse."""

import os

import pytest
import torch
from run_fixtures import MODEL
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from training_scripts import LARGE, QUIET, adding, plain

import flstream.client as flare
from flstream.errors import CheckpointError, ClientError

# A site adds its number to its file, tensor by tensor, as `adding` does in memory.
FILES = """
import os
import flstream.client as flare

flare.init()
index = int(flare.get_site_name()[5:])
while flare.is_running():
    model = flare.receive(file="kept/model.safetensors")
    assert model.params is None and os.path.isabs(model.file)
    assert flare.receive() is model
    with flare.edit(model.file) as tensors:
        for name in tensors:
            tensors[name] = tensors[name] + index
    answer = flare.FLModel(file="kept/model.safetensors", meta={"num_examples": index})
    flare.send(answer)
"""
LEARNER = """
import flstream.client as flare


class InFile(flare.Learner):
    exchange = "file"

    def train(self, path):
        index = self.site.index + 1
        with flare.edit(path) as tensors:
            for name in tensors:
                tensors[name] = tensors[name] + index
        return flare.FLModel(file=path, meta={"num_examples": index})
"""
OVERRIDES = {
    "plain": [],
    "shared workers": ["clients.parallel=1"],
    "mapped": ["streaming.mode=map"],
    "native": ["streaming.mode=native"],
    "codecs": ["streaming.codecs.up=[int8]", "streaming.codecs.down=[cast]"],
    "filters": ["filters.up=[{type=percentile_privacy}]"],
    "selection": ["aggregation.include=[w]"],
    "swarm": ["workflow.type=swarm"],
}


@pytest.mark.parametrize("overrides", OVERRIDES.values(), ids=OVERRIDES)
def test_files_end_in_the_bits_of_memory(jobs, overrides):
    options = [QUIET, LARGE, *overrides]
    memory, files = jobs.run(adding({}), *options), jobs.run(FILES, *options)
    assert files.summary.status == "finished", files.summary.error
    assert files.summary.model.digest == memory.summary.model.digest
    assert files.summary.warnings == memory.summary.warnings


def test_a_learner_is_given_the_path_and_small_models_travel_in_answers(jobs):
    learner = ["train.script=null", "train.learner=client:InFile", "clients.parallel=1"]
    memory = jobs.run(adding({}), QUIET)
    files = jobs.run(LEARNER, QUIET, *learner).finished()
    assert files.summary.model.digest == memory.summary.model.digest


def test_what_the_file_has_already_is_not_fetched(jobs):
    unchanged = plain(receive="file='m.safetensors'", sends="file=model.file").replace(
        "model.params, {}", "None, {}"
    )
    summary = (
        jobs.run(
            unchanged, QUIET, "model.args.elements=2000000", "network={down=8 Gbit}", "rounds=3"
        )
        .finished()
        .summary
    )
    assert summary.transfer.down.reused >= 2 * 2 * summary.model.bytes - (1 << 20)


def test_where_workers_are_shared_the_file_itself_becomes_the_update(jobs):
    script = FILES.replace(
        "    flare.send(answer)\n",
        "    number = os.stat(model.file).st_ino\n"
        "    flare.send(answer)\n"
        "    assert not os.path.exists(model.file)\n"
        "    flare.log('inode', number)\n",
    )
    run = jobs.run(script, QUIET, LARGE, "clients.parallel=1", "rounds=1").finished()
    assert not list(run.directory.sites.glob("*/work/kept/*"))


HELD = {
    "open": "held = open('m.safetensors', 'r+b')",
    "edited": "held = flare.edit('m.safetensors'); held.__enter__()",
    "mapped": "fd = os.open('m.safetensors', os.O_RDWR); held = mmap.mmap(fd, 0); os.close(fd)",
    "linked": "os.link('m.safetensors', 'other')",
    "link": "os.rename('m.safetensors', 'other'); os.symlink('other', 'm.safetensors')",
}
_HELD = """
import mmap, os
import flstream.client as flare

flare.init()
while flare.is_running():
    model = flare.receive(file="m.safetensors")
    index = int(flare.get_site_name()[5:])
    with flare.edit(model.file) as tensors:
        tensors["w"] = tensors["w"] + index
    {held}
    flare.send(flare.FLModel(file="m.safetensors"))
    with open("other" if os.path.exists("other") else "m.safetensors", "r+b") as file:
        file.seek(-8, os.SEEK_END)
        file.write(b"12345678")
"""


@pytest.mark.parametrize("held", HELD)
def test_a_file_that_somebody_may_write_is_copied_and_stays(jobs, held):
    options = (QUIET, LARGE, "rounds=1")
    plain_run = jobs.run(_HELD.format(held=HELD["open"]), *options)
    run = jobs.run(_HELD.format(held=HELD[held]), *options, "clients.parallel=1").finished()
    assert run.summary.model.digest == plain_run.summary.model.digest


def test_a_file_of_others_is_sent_and_stays_where_it_is(jobs, path):
    save_file({name: tensor * 2 for name, tensor in model_of(300000).items()}, path)
    script = plain(receive="file='m.safetensors'", sends=f"file='{path}'")
    script = script.replace("model.params, {}", "None, {}")
    before = path.read_bytes()
    jobs.run(script, QUIET, LARGE, "clients.parallel=1", "rounds=1").finished()
    assert path.read_bytes() == before


def model_of(elements: int) -> dict[str, torch.Tensor]:
    """The model of the fixture's job."""
    names: dict = {}
    exec(MODEL, names)
    return names["build"](elements)


MISUSES = {
    "flare.receive(file='m', into={})": "receive() was given both into and file",
    "flare.send(flare.FLModel(file='none.safetensors'))": "none.safetensors; check the path",
    "flare.send(flare.FLModel(file=7))": "FLModel(file=...) was given a int; give it the path of a",
    "flare.FLModel(params={}, file='m')": "FLModel was given both params and file",
    "open('t', 'w').write('text'); flare.send(flare.FLModel(file='t'))": "work/t",
    "os.mkfifo('p'); flare.send(flare.FLModel(file='p'))": "work/p is a pipe; name a regular file",
    "flare.receive(file='/dev/null')": "/dev/null cannot be written: it is no regular file",
    "save({'w': load()['w']})": "tensor 'b' is missing",
    "save({**load(), 'w': torch.ones(3)})": "tensor 'w' has shape [3] instead of [1000]",
    "save({**load(), 'w': load()['w'].double()})": "tensor 'w' has dtype F64 instead of F32",
    "save({**load(), 'new': torch.ones(3)})": "'new' is not part of the model",
    "save({**load(), 'w': load()['w'] / 0})": "is not finite: tensor 'w' at [0]",
}
_MISUSE = """
import os
import flstream.client as flare
import torch
from safetensors.torch import load_file, save_file


def load():
    return load_file("m.safetensors")


def save(tensors):
    save_file(tensors, "new.safetensors")
    flare.send(flare.FLModel(file="new.safetensors"))


flare.init()
while flare.is_running():
    if {early}:
        {deed}
    model = flare.receive(file="m.safetensors")
    {deed}
"""


@pytest.mark.parametrize("deed", MISUSES)
def test_misuse_fails_the_site_with_a_sentence(jobs, deed):
    script = _MISUSE.format(deed=deed, early="receive" in deed)
    summary = jobs.run(script, QUIET, "rounds=1").summary
    assert summary.status == "failed"
    assert MISUSES[deed] in summary.error


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["workflow={type=scaffold}"], "'control' travel beside the model, which a file does not"),
        (["workflow={type=fedavg,args{fedprox_mu=0.5}}"], "fedprox_mu needs the received model in"),
    ],
)
def test_a_workflow_that_needs_the_model_in_memory_is_named(jobs, overrides, message):
    summary = jobs.run(FILES, QUIET, *overrides).summary
    assert summary.status == "failed"
    assert message in summary.error


def test_two_sites_with_one_path_are_told_so(jobs):
    shared = f"file='{jobs.folder}/one.safetensors'"
    script = plain("import time; time.sleep(0.3)", receive=shared, sends="file=model.file")
    script = script.replace("model.params, {}", "None, {}")
    summary = jobs.run(script, QUIET, "engine.type=local").summary
    assert summary.status == "failed"
    assert "one.safetensors" in summary.error
    assert "has the model of site-" in summary.error or "someone else is writing" in summary.error


@pytest.fixture
def path(tmp_path):
    tensors = {"w": torch.arange(6.0).reshape(2, 3), "n": torch.tensor(3), "e": torch.empty(0, 2)}
    save_file(tensors, tmp_path / "m.safetensors", {"kept": "yes"})
    return tmp_path / "m.safetensors"


def test_edit_reads_copies_and_writes_what_is_assigned(path):
    inode = path.stat().st_ino
    with flare.edit(path) as tensors:
        assert (set(tensors), len(tensors), "w" in tensors, "x" in tensors) == (
            {"w", "n", "e"}, 3, True, False
        )  # fmt: skip
        copied = tensors["w"]
        copied += 1
        assert tensors["w"][0, 0] == 0
        tensors["w"] = copied.t().contiguous().t()
        tensors["n"] = torch.tensor(4)
        tensors["e"] = tensors["e"]
    after = load_file(path)
    assert torch.equal(after["w"], torch.arange(1.0, 7.0).reshape(2, 3))
    assert (after["n"].item(), path.stat().st_ino) == (4, inode)
    with safe_open(path, "pt") as file:
        assert file.metadata() == {"kept": "yes"}


def test_after_its_block_edit_touches_no_file(path, tmp_path):
    with flare.edit(path) as tensors:
        copied = tensors["w"]
    with (tmp_path / "other").open("w+b"):  # which has the descriptor now
        for deed in (lambda: tensors["w"], lambda: tensors.update(w=copied), lambda: len(tensors)):
            with pytest.raises(ClientError, match="is over; read and assign its tensors within it"):
                deed()
    assert (tmp_path / "other").read_bytes() == b""


@pytest.mark.parametrize(
    ("deed", "message"),
    [
        (lambda tensors: tensors["x"], "there is no tensor 'x' in"),
        (lambda tensors: tensors.__setitem__("x", torch.ones(1)), "whose names are fixed"),
        (lambda tensors: tensors.pop("w"), "tensor 'w' stays in"),
        (lambda tensors: tensors.__setitem__("w", torch.ones(3, 2)), "of shape [2, 3], and was"),
        (lambda tensors: tensors.__setitem__("w", 3.0), "'w' of"),
        (lambda tensors: tensors.__setitem__("w", [[1.0]]), "was assigned a list; assign a tensor"),
        (lambda tensors: tensors.__setitem__("n", torch.ones(())), "is I64 of shape [], and was"),
    ],
)
def test_edit_refuses_what_does_not_fit_and_changes_nothing(path, deed, message):
    before = path.read_bytes()
    with pytest.raises(ClientError) as refused, flare.edit(path) as tensors:
        deed(tensors)
    assert message in str(refused.value)
    assert path.read_bytes() == before


def test_edit_refuses_a_file_that_others_have(path):
    with flare.edit(path), pytest.raises(CheckpointError, match="someone else is writing"):
        flare.edit(path).__enter__()
    os.link(path, path.with_name("other"))
    for name in (path, path.with_name("link")):
        path.with_name("link").unlink(missing_ok=True)
        path.with_name("link").symlink_to("other")
        with pytest.raises(CheckpointError, match="is a link, or has other"), flare.edit(name):
            pass
    with pytest.raises(CheckpointError, match="No such file"), flare.edit(path.with_name("none")):
        pass
    text = path.with_name("text")
    text.write_text("no tensors at all")
    with pytest.raises(CheckpointError), flare.edit(text):
        pass
    assert text.read_text() == "no tensors at all"


@pytest.mark.parametrize(
    "use",
    [
        "flare.receive(file=checkpoint)",
        "\n    with flare.edit(checkpoint) as tensors:\n        pass",
    ],
)
def test_a_site_may_not_write_to_a_checkpoint_of_the_run(jobs, use):
    script = f"""
import flstream.client as flare
from pathlib import Path

flare.init()
while flare.is_running():
    folder = Path(flare.system_info()["site_dir"]).parents[1]
    checkpoint = folder / "checkpoints" / "round-0000.safetensors"
    {use.strip()}
    flare.send(flare.receive())
"""
    run = jobs.run(script, "rounds=1", "clients.count=1", "workflow.args.evaluate_every=0")
    assert run.summary.status == "failed"
    assert "is a file of the run's own, which sites must not write" in run.summary.error
