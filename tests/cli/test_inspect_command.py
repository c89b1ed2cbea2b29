"""`flstream inspect` explains sound checkpoints, and says in a sentence what ails others."""

import json
import os
from pathlib import Path

import pytest
import torch
from cli_support import Flstream
from safetensors.torch import save_file

from flstream.model.checkpoint import write_checkpoint
from flstream.model.memory import MemoryBody


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Return a file as the safetensors library writes it."""
    tensors = {
        "layer.weight": torch.zeros(30, 20),
        "layer.bias": torch.zeros(20, dtype=torch.bfloat16),
        "steps": torch.tensor(3),
        "[bold]not markup[/bold]": torch.zeros(1),
        "escape\x1b[31m\nline": torch.zeros(1),
    }
    path = tmp_path / "model.safetensors"
    save_file(tensors, path, metadata={"format": "pt", "note": "[red]\x07"})
    return path


def test_the_document_describes_every_tensor(flstream: Flstream, checkpoint: Path) -> None:
    done = flstream("inspect", checkpoint, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    tensors = {each["name"]: each for each in document["tensors"]}
    weight = tensors["layer.weight"]
    assert (weight["dtype"], weight["shape"], weight["bytes"]) == ("F32", [30, 20], 2400)
    assert weight["stop"] - weight["start"] == 2400
    assert tensors["steps"]["shape"] == []
    assert "escape\x1b[31m\nline" in tensors
    assert document["format"] == "safetensors"
    assert document["total"] == {"tensors": 5, "parameters": 623, "bytes": 2456}
    assert document["dtypes"]["BF16"] == {"tensors": 1, "parameters": 20, "bytes": 40}
    assert document["metadata"] == {"format": "pt", "note": "[red]\x07"}
    assert document["tied"] == {}
    assert document["header_bytes"] + 2456 == checkpoint.stat().st_size


def test_the_text_lists_names_literally_and_ends_with_totals(
    flstream: Flstream, checkpoint: Path
) -> None:
    done = flstream("inspect", checkpoint)
    assert (done.returncode, done.stderr) == (0, "")
    assert "[bold]not markup[/bold]" in done.stdout
    assert r"escape\x1b[31m\nline" in done.stdout
    assert r"note: [red]\x07" in done.stdout
    assert "\x1b" not in done.stdout
    assert "\x07" not in done.stdout
    assert "5 tensors, 623 parameters, 2.4 KiB" in done.stdout


def test_ties_are_shown(flstream: Flstream, tmp_path: Path) -> None:
    weight = torch.zeros(3, 2)
    state = {"wte": weight, "lm_head": weight, "new\nline": weight}
    write_checkpoint(tmp_path / "tied.safetensors", MemoryBody.of(state), {"format": "pt"})
    document = json.loads(flstream("inspect", "tied.safetensors", "--json").stdout)
    assert document["tied"] == {"new\nline": "lm_head", "wte": "lm_head"}
    assert [each["name"] for each in document["tensors"]] == ["lm_head"]
    assert document["metadata"] == {"format": "pt"}
    text = flstream("inspect", "tied.safetensors").stdout
    assert "\ntied\n  new\\nline = lm_head\n  wte = lm_head\n" in text


def test_names_are_whole_where_there_is_no_terminal(flstream: Flstream, tmp_path: Path) -> None:
    name = ".".join(f"block{number}" for number in range(40))
    save_file({name: torch.zeros(2)}, tmp_path / "long.safetensors")
    assert name in flstream("inspect", "long.safetensors").stdout


def test_a_run_directory_stands_for_its_latest_model(
    flstream: Flstream, checkpoint: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run" / "checkpoints"
    folder.mkdir(parents=True)
    (folder / "round-0001.safetensors").write_bytes(b"not to be read")
    os.link(checkpoint, folder / "round-0002.safetensors")
    document = json.loads(flstream("inspect", "run", "--json").stdout)
    assert document["path"] == "run/checkpoints/round-0002.safetensors"
    os.link(checkpoint, tmp_path / "run" / "global.safetensors")
    document = json.loads(flstream("inspect", "run", "--json").stdout)
    assert document["path"] == "run/global.safetensors"


def _huge_header(data: bytes) -> bytes:
    return (2**40).to_bytes(8, "little") + data[8:]


def _not_json(data: bytes) -> bytes:
    return data[:8] + b"x" * (len(data) - 8)


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda data: b"", id="empty"),
        pytest.param(lambda data: data[:5], id="cut in the prefix"),
        pytest.param(lambda data: data[:40], id="cut in the header"),
        pytest.param(lambda data: data[:-1], id="cut in the tensors"),
        pytest.param(lambda data: data + b"x", id="too long"),
        pytest.param(_huge_header, id="a header of a TiB"),
        pytest.param(_not_json, id="not JSON"),
        pytest.param(lambda data: b"PK\x03\x04" + data, id="another format"),
    ],
)
@pytest.mark.parametrize("form", [(), ("--json",)])
def test_a_damaged_file_is_one_sentence_on_stderr(
    flstream: Flstream, checkpoint: Path, damage: object, form: tuple[str, ...]
) -> None:
    assert callable(damage)
    checkpoint.write_bytes(damage(checkpoint.read_bytes()))
    done = flstream("inspect", checkpoint, *form)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: {checkpoint}")


def test_what_is_no_file_is_refused_without_being_opened(
    flstream: Flstream, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder"):
        done = flstream("inspect", name)
        assert done.returncode == 2
        assert len(done.stderr.splitlines()) == 1
