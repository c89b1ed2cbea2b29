"""A folder that travels as an archive: the copy has its digest, and nothing leaves the copy."""

import io
import os
import struct
import tracemalloc
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from folders import CHANGES, fill
from hypothesis import given, settings
from hypothesis import strategies as st

from flstream.errors import ProtocolError
from flstream.model.folder_archive import pack_folder, unpack_folder
from flstream.model.folder_content import folder_digest
from flstream.text import error_text


def packed(folder, leave_out=lambda path: False):
    file = io.BytesIO()
    pack_folder(str(folder), file, leave_out)
    return io.BytesIO(file.getvalue())


def record(name, kind, content=b"", *, mode=0o755, time=0, nbytes=None):
    """A record as :func:`pack_folder` writes it, of anything."""
    path = os.fsencode(name)
    size = len(content) if nbytes is None else nbytes
    return struct.pack("<cHqIQ", kind, mode, time, len(path), size) + path + content


ROOT = record("", b"d")


@pytest.mark.parametrize(
    "change", [lambda top: None, *CHANGES.values()], ids=["as it is", *CHANGES]
)
def test_the_copy_has_the_digest(tmp_path, change):
    folder = fill(tmp_path / "folder")
    change(folder)
    unpack_folder(packed(folder), str(tmp_path / "copy"))
    assert folder_digest(str(tmp_path / "copy")) == folder_digest(str(folder))
    times = [(tmp_path / name / "tool").stat().st_mtime for name in ("folder", "copy")]
    assert int(times[0]) == int(times[1])


NAMES = st.text("ab/ü.\n", min_size=1, max_size=12)


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(NAMES, st.binary(max_size=600)))
def test_any_names_and_contents(files):
    with TemporaryDirectory() as parent:
        top = Path(parent, "top")
        top.mkdir()
        for name, content in files.items():
            path = top / os.path.normpath(f"/{name}").lstrip("/")
            # Where a file is in the place of a folder, or the other way round, it is left out.
            with suppress(OSError):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
        unpack_folder(packed(top), f"{parent}/copy")
        assert folder_digest(f"{parent}/copy") == folder_digest(str(top))


def test_folders_without_permissions(tmp_path):
    folder = tmp_path / "folder"
    (folder / "closed").mkdir(parents=True)
    (folder / "closed" / "file").write_text("x")
    (folder / "closed").chmod(0o500)
    folder.chmod(0o500)
    unpack_folder(packed(folder), str(tmp_path / "copy"))
    assert folder_digest(str(tmp_path / "copy")) == folder_digest(str(folder))
    for each in (folder, tmp_path / "copy"):
        each.chmod(0o700)
        (each / "closed").chmod(0o700)


def test_the_same_content_has_the_same_archive(tmp_path):
    for name in ("one", "two"):
        folder = fill(tmp_path / name)
        for path in [folder, *folder.rglob("*")]:
            os.utime(path, (5, 5), follow_symlinks=False)
    assert packed(tmp_path / "one").read() == packed(tmp_path / "two").read()


def test_what_is_left_out(tmp_path):
    folder = fill(tmp_path / "folder")
    left_out = {str(folder / "deep"), str(folder / "tool")}
    unpack_folder(packed(folder, left_out.__contains__), str(tmp_path / "copy"))
    names = {path.name for path in (tmp_path / "copy").rglob("*")}
    assert "hollow" in names
    assert not names & {"deep", "er", "file", "tool"}


@pytest.mark.parametrize(
    "records",
    [
        [ROOT, record("../out", b"f", b"x")],
        [ROOT, record("/tmp/out", b"f", b"x")],
        [ROOT, record("a/../../out", b"f", b"x")],
        [ROOT, record(".", b"d")],
        [ROOT, record("a\0b", b"f", b"x")],
        [ROOT, record("link", b"l", b".."), record("link/out", b"f", b"x")],
        [ROOT, record("link", b"l", b"../out"), record("link", b"f", b"x")],
        [ROOT, record("a", b"d"), record("a", b"d")],
        [ROOT, record("a/b", b"f", b"x")],
        [ROOT, record("a" * 256, b"f", b"x")],
        [ROOT, record("a" * 5000, b"f", b"x")],
        [ROOT, record("a", b"l", b"x" * 5000)],
        [ROOT, record("a", b"d", b"x" * 5000)],
        [ROOT, record("a", b"f", b"x", nbytes=1 << 63)],
        [ROOT, record("a", b"p")],
        [ROOT, ROOT],
        [record("a", b"f", b"x")],
        [record("", b"f", b"x")],
        [],
    ],
)
def test_an_archive_that_is_none_is_refused(tmp_path, records):
    with pytest.raises(ProtocolError, match="archive of a folder"):
        unpack_folder(io.BytesIO(b"".join(records)), str(tmp_path / "copy"))
    assert not (tmp_path / "out").exists()


def test_odd_permissions_and_times_are_those_of_a_file(tmp_path):
    extreme = [record(str(time), b"f", time=time, mode=0o7777) for time in (-(1 << 63), 1 << 62)]
    unpack_folder(io.BytesIO(b"".join([ROOT, *extreme])), str(tmp_path / "copy"))
    assert {path.stat().st_mode & 0o7777 for path in (tmp_path / "copy").iterdir()} == {0o777}


@pytest.mark.nightly
def test_many_entries_take_no_memory():
    class Endless(io.RawIOBase):
        """An archive of so many links."""

        left, data = 20_000, ROOT

        def read(self, size=-1):
            while len(self.data) < size and self.left:
                self.left -= 1
                self.data += record(f"{self.left:0200}", b"l", b"x" * 200)
            found, self.data = self.data[:size], self.data[size:]
            return found

    with TemporaryDirectory() as parent:
        tracemalloc.start()
        try:
            unpack_folder(Endless(), f"{parent}/copy")
            assert tracemalloc.get_traced_memory()[1] < 1 << 20
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize("content", [b"", b"garbage" * 1000, bytes(20_000), b"d"])
def test_bytes_that_are_no_archive_are_refused(tmp_path, content):
    with pytest.raises(ProtocolError, match="archive of a folder"):
        unpack_folder(io.BytesIO(content), str(tmp_path / "copy"))


def test_an_archive_that_was_cut_short_is_refused_or_another_one(tmp_path):
    whole = packed(fill(tmp_path / "folder")).read()
    digest = folder_digest(str(tmp_path / "folder"))
    for length in range(len(whole)):
        copy = tmp_path / f"copy-{length}"
        try:
            unpack_folder(io.BytesIO(whole[:length]), str(copy))
        except ProtocolError:
            continue
        assert folder_digest(str(copy)) != digest


def test_a_file_that_grows_shorter_meanwhile_is_an_error(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "file").write_bytes(bytes(3 << 20))

    class Cutting(io.BytesIO):
        def write(self, data):
            if len(data) == 1 << 20:  # the first piece of three
                (folder / "file").write_bytes(b"short")
            return super().write(data)

    with pytest.raises(OSError, match="it became shorter") as caught:
        pack_folder(str(folder), Cutting())
    assert error_text(caught.value) == f"{folder}/file: it became shorter while it was read"
