"""Two downloads into one file, in two processes: one has it, and the other is refused."""

import pytest
from safetensors.numpy import load_file

from flstream.errors import CheckpointError
from flstream.model.checkpoint import FileSink
from flstream.model.layout import Layout


@pytest.mark.parametrize("resume", [False, True])
def test_a_file_that_is_written_is_not_written_by_another(tmp_path, resume):
    layout = Layout.of([("w", "F32", (4,))])
    path = tmp_path / "model.safetensors"
    with FileSink(path, layout) as sink:
        with pytest.raises(CheckpointError, match="someone else is writing it now"):
            FileSink(path, layout, resume=resume)
        sink.write(0, memoryview(bytes(16)))
        sink.finish()
    with FileSink(path, layout, resume=resume) as sink:
        sink.write(0, memoryview(b"\1" * 16))
        sink.finish()
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("link", ["symlink_to", "hardlink_to"])
@pytest.mark.parametrize("resume", [False, True])
def test_a_file_that_a_link_leads_to_is_not_written(tmp_path, link, resume):
    other, path = tmp_path / "other", tmp_path / "m.safetensors"
    other.write_bytes(b"somebody's")
    getattr(path.with_name("m.safetensors.tmp"), link)(other)
    with FileSink(path, Layout.of([("w", "F32", (4,))]), resume=resume) as sink:
        sink.write(0, memoryview(bytes(16)))
        sink.finish()
    assert other.read_bytes() == b"somebody's"
    assert not path.is_symlink()
    assert load_file(path)["w"].tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("resume", [False, True])
def test_a_layout_that_no_file_can_have_leaves_none(tmp_path, resume):
    layout = Layout.of([("w", "U8", (2**63 - 1,))])
    with pytest.raises(CheckpointError, match=r"needs .* bytes of disk: no file may have as many"):
        FileSink(tmp_path / "model.safetensors", layout, resume=resume)
    assert not list(tmp_path.iterdir())
