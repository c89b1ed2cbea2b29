"""`flstream inspect` explains sound checkpoints, and says in a sentence what ails others."""

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
from cli_support import PROGRAM, environment
from nightly_cases import first_and_nightly
from safetensors.torch import save_file

from flstream.model.checkpoint import write_checkpoint
from flstream.model.layout import Layout
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


def test_the_document_describes_every_tensor(flstream_here, checkpoint):
    done = flstream_here("inspect", checkpoint, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    tensors = {each["name"]: each for each in document["tensors"]}
    weight = {"name": "layer.weight", "dtype": "F32", "shape": [30, 20], "bytes": 2400}
    assert tensors["layer.weight"].items() >= weight.items()
    assert "escape\x1b[31m\nline" in tensors
    assert document["format"] == "safetensors"
    assert document["total"] == {"tensors": 5, "parameters": 623, "bytes": 2456}
    assert document["dtypes"]["BF16"] == {"tensors": 1, "parameters": 20, "bytes": 40}
    assert document["metadata"] == {"format": "pt", "note": "[red]\x07"}
    assert document["tied"] == {}
    assert document["header_bytes"] + 2456 == document["file_bytes"] == checkpoint.stat().st_size
    assert document["streaming"]["chunks"] == 1

    done = flstream_here("inspect", checkpoint)
    for words in ("[bold]not markup[/bold]", r"escape\x1b[31m\nline", r"note: [red]\x07"):
        assert words in done.stdout
    assert not {"\x1b", "\x07"} & set(done.stdout)
    assert "5 tensors, 623 parameters, 2.4 KiB" in done.stdout

    everything = ("--stats", "--verify", "--diff", checkpoint)
    more = json.loads(flstream_here("inspect", checkpoint, "--json", *everything).stdout)
    for tensor in more["tensors"]:
        assert set(tensor.pop("stats")) == {
            *("finite", "non_finite", "nan", "zeros", "min", "max", "mean", "std", "norm")
        }
    assert more.pop("diff").items() >= {"equal_share": 1.0, "changed": [], "added": []}.items()
    assert more.pop("verified")[0]["round"] is None
    assert more == document


def test_ties_are_shown(flstream_here, tmp_path):
    state = dict.fromkeys(("wte", "lm_head", "new\nline"), torch.zeros(3, 2))
    write_checkpoint(tmp_path / "tied.safetensors", MemoryBody.of(state))
    document = json.loads(flstream_here("inspect", "tied.safetensors", "--json").stdout)
    assert document["tied"] == {"new\nline": "lm_head", "wte": "lm_head"}
    assert [each["name"] for each in document["tensors"]] == ["lm_head"]
    assert "\n  new\\nline = lm_head\n" in flstream_here("inspect", "tied.safetensors").stdout


def test_what_is_damaged_or_no_file_is_one_sentence_on_stderr(refused, checkpoint, tmp_path):
    checkpoint.write_bytes(checkpoint.read_bytes()[:-1])
    os.mkfifo(tmp_path / "pipe")
    for path in (checkpoint, "pipe", "."):
        (line,) = refused("inspect", path, "--json").splitlines()
        assert line.startswith(f"error: {path}")


def test_the_text_says_what_was_asked_in_plain_lines(flstream_here, checkpoint, tmp_path):
    torch.save({"steps": torch.tensor(5), "new": torch.ones(3)}, tmp_path / "other.pt")
    done = flstream_here("inspect", checkpoint, "--stats", "--verify", "--diff", "other.pt")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    for line in (
        "steps 3 3 3 0 3 0 0 0",
        "steps 2 2 8 B 1 B 0",
        "1 added, 4 removed, 0 reshaped, 1 changed",
        f"verified {checkpoint}",
        "1 chunk of 2 MiB",
    ):
        assert line in lines


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--chunk-size", "100"), "--chunk-size 100: a multiple of 16"),
        (("--chunk-size", "0"), "--chunk-size 0: a multiple of 16"),
        (("--diff", "missing.npz"), "there is no missing.npz"),
    ],
)
def test_a_wrong_option_exits_2_and_is_named(refused, checkpoint, words, message):
    assert message in refused("inspect", checkpoint, *words)


SPARSE = 128 << 20


@first_and_nightly("words", [(), ("--stats",), ("--verify",), ("--diff", "other.safetensors")])
def test_memory_does_not_grow_with_the_file(tmp_path: Path, words: tuple[str, ...]) -> None:
    for name, elements in (("tiny", 4), ("large", SPARSE // 4), ("other", SPARSE // 4)):
        with (tmp_path / f"{name}.safetensors").open("wb") as file:
            file.write(Layout.of([("a", "F32", (elements,))]).header())
            file.truncate(file.tell() + 4 * elements)
    with (tmp_path / "other.safetensors").open("r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(b"tail")
    same = ("--diff", "tiny.safetensors") if "--diff" in words else words
    idle, peak = (peak_rss(tmp_path, *each) for each in (("tiny", *same), ("large", *words)))
    assert peak - idle < 16 << 20


def peak_rss(folder: Path, name: str, *words: str) -> int:
    """The most memory that a process which inspects a file has."""
    command = [*PROGRAM, "inspect", f"{name}.safetensors", *words]
    process = subprocess.Popen(command, cwd=folder, env=environment(), stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return used.ru_maxrss * 1024


def test_an_export_names_its_files(flstream_here, refused, tmp_path):
    save_file({"w": torch.zeros(3)}, tmp_path / "m.safetensors")
    done = flstream_here("inspect", "m.safetensors", "--export", "out")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1].strip() == "out/model.safetensors"
    done = flstream_here("inspect", "m.safetensors", "--export", "other", "--json")
    assert json.loads(done.stdout)["files"] == ["other/model.safetensors"]
    for words, message in ((("out",), "has files in it"), (("x", "--stats"), "give it alone")):
        assert message in refused("inspect", "m.safetensors", "--export", *words)
