"""A folder that travels as an archive: the copy has its digest, and nothing leaves the copy."""

import io
import os
import tarfile
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from folders import CHANGES, fill
from hypothesis import given, settings
from hypothesis import strategies as st

from flstream.client.folder_archive import pack_folder, unpack_folder
from flstream.client.folder_content import folder_digest
from flstream.errors import ProtocolError


def packed(folder, leave_out=lambda path: False):
    file = io.BytesIO()
    pack_folder(str(folder), file, leave_out)
    return io.BytesIO(file.getvalue())


def archive(*members):
    """An archive of members as (name, kind, content or target)."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as made:
        for name, kind, content in members:
            member = tarfile.TarInfo(name)
            member.type = kind
            if kind == tarfile.REGTYPE:
                member.size = len(content)
                made.addfile(member, io.BytesIO(content))
            else:
                member.mode, member.linkname = 0o755, content
                made.addfile(member)
    return io.BytesIO(file.getvalue())


ROOT = (".", tarfile.DIRTYPE, "")


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
    "members",
    [
        [ROOT, ("../out", tarfile.REGTYPE, b"x")],
        [ROOT, ("/tmp/out", tarfile.REGTYPE, b"x")],
        [ROOT, ("a/../../out", tarfile.REGTYPE, b"x")],
        [ROOT, ("link", tarfile.SYMTYPE, ".."), ("link/out", tarfile.REGTYPE, b"x")],
        [ROOT, ("link", tarfile.SYMTYPE, "../out"), ("link", tarfile.REGTYPE, b"x")],
        [ROOT, ("a", tarfile.REGTYPE, b"x"), ("b", tarfile.LNKTYPE, "a")],
        [ROOT, ("b", tarfile.LNKTYPE, "../secret")],
        [ROOT, ("pipe", tarfile.FIFOTYPE, "")],
        [ROOT, ("device", tarfile.CHRTYPE, "")],
        [ROOT, ("a", tarfile.DIRTYPE, ""), ("a", tarfile.DIRTYPE, "")],
        [ROOT, ("a/b", tarfile.REGTYPE, b"x")],
        [ROOT, ROOT],
        [("a", tarfile.REGTYPE, b"x")],
        [(".", tarfile.REGTYPE, b"x")],
        [],
    ],
)
def test_an_archive_that_is_none_is_refused(tmp_path, members):
    (tmp_path / "secret").write_text("secret")
    with pytest.raises(ProtocolError, match="archive of a folder"):
        unpack_folder(archive(*members), str(tmp_path / "copy"))
    assert not (tmp_path / "out").exists()
    assert (tmp_path / "secret").read_text() == "secret"


@pytest.mark.parametrize("content", [b"", b"garbage" * 1000, bytes(20_000)])
def test_bytes_that_are_no_archive_are_refused(tmp_path, content):
    with pytest.raises(ProtocolError, match="archive of a folder"):
        unpack_folder(io.BytesIO(content), str(tmp_path / "copy"))


def test_an_archive_that_was_cut_short_is_refused(tmp_path):
    whole = packed(fill(tmp_path / "folder")).read()
    digest = folder_digest(str(tmp_path / "folder"))
    for length in range(512, len(whole) - 1024, 512):
        copy = tmp_path / f"copy-{length}"
        try:
            unpack_folder(io.BytesIO(whole[:length]), str(copy))
        except ProtocolError:
            continue
        assert length >= len(whole.rstrip(b"\0")) or folder_digest(str(copy)) != digest


def test_a_file_that_grows_shorter_meanwhile_is_an_error(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "file").write_bytes(bytes(3 << 20))

    class Cutting(io.BytesIO):
        def write(self, data):
            (folder / "file").write_bytes(b"short")
            return super().write(data)

    with pytest.raises(OSError, match="unexpected end"):
        pack_folder(str(folder), Cutting())
