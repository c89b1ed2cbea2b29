"""Every format gives the bytes that its tensors have, whatever range is asked for."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from support import assert_same_tensors, every_kind, tensors_of

from flstream.model.formats.opening import open_checkpoint


def test_tensors_of_torch_keep_their_bits_names_and_ties(tmp_path: Path) -> None:
    state = every_kind()
    weight = torch.arange(12.0).reshape(3, 4)
    state |= {
        "tied": weight,
        "weight": weight,
        "turned": weight.t(),
        "columns": torch.arange(40000.0).reshape(200, 200)[:, 20:40],
        "part": torch.arange(100)[10:20],
        "every other": torch.arange(100)[::2],
        "conjugate": torch.tensor([1 + 2j]).conj(),
        "parameter": torch.nn.Parameter(torch.ones(2)),
    }
    path = tmp_path / "model.bin"
    torch.save({"state": state, "epoch": 3, "history": [{"loss": 0.5}, None]}, path)
    file = open_checkpoint(path)
    assert {*file.layout.by_name, *file.layout.aliases} == {f"state.{name}" for name in state}
    del state["weight"]
    due = {f"state.{name}": value.detach().resolve_conj() for name, value in state.items()}
    assert_same_tensors(tensors_of(file), due)
    assert file.layout.aliases == {"state.weight": "state.tied"}
    assert file.metadata == {"epoch": "3", "history.0.loss": "0.5"}
    assert "CRC-32" in file.check()[-1]


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_of_an_npz_are_read_in_c_order(tmp_path: Path, save: Callable[..., None]) -> None:
    generator = np.random.default_rng(0)
    arrays = {
        "fortran": np.asfortranarray(generator.standard_normal((6, 5, 4))),
        "column": np.asfortranarray(generator.standard_normal((9, 1))),
        "scalar": np.array(3, np.int16),
    }
    save(tmp_path / "a.npz", **arrays)
    file = open_checkpoint(tmp_path / "a.npz")
    due = {name: torch.from_numpy(array.copy("C")) for name, array in arrays.items()}
    assert_same_tensors(tensors_of(file), due)
    assert "CRC-32" in file.check()[-1]


def write_shards(folder: Path, count: int = 3) -> dict[str, torch.Tensor]:
    state = every_kind()
    state |= {f"layers.{number}": torch.full((5,), float(number)) for number in range(count)}
    where = {}
    for number in range(count):
        names = sorted(state)[number::count]
        name = f"model-{number}.safetensors"
        save_file({each: state[each] for each in names}, folder / name, {"format": "pt"})
        where |= dict.fromkeys(names, name)
    text = json.dumps({"metadata": {"total_size": 1}, "weight_map": where})
    (folder / "model.safetensors.index.json").write_text(text)
    return state


def test_shards_are_one_body_of_what_the_index_names(tmp_path: Path) -> None:
    state = write_shards(tmp_path)
    path = tmp_path / "model.safetensors.index.json"
    file = open_checkpoint(path)
    assert_same_tensors(tensors_of(file), state)
    assert sum(each.stat().st_size for each in tmp_path.iterdir()) == file.file_bytes
    assert any("where it says 1" in check for check in file.check())
    index = json.loads(path.read_text())
    del index["weight_map"]["F32.matrix"]
    path.write_text(json.dumps(index))
    file = open_checkpoint(path)
    assert "F32.matrix" not in file.layout.by_name
    assert any("1 more that the index does not name" in check for check in file.check())


def test_a_download_cache_of_links_is_followed(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "main"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    state = write_shards(blobs)
    for number, path in enumerate(sorted(blobs.iterdir())):
        shutil.move(path, blobs / f"digest{number}")
        (snapshot / path.name).symlink_to(f"../../blobs/digest{number}")
    file = open_checkpoint(snapshot / "model.safetensors.index.json")
    assert set(file.layout.by_name) == set(state)
