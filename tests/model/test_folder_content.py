"""A folder's digest and copy: all that training code finds there, and nothing else."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import flstream
from flstream.model.folder_content import copy_folder, folder_bytes, folder_digest, sync_folder


def fill(folder: Path) -> Path:
    """One of everything."""
    (folder / "deep/er").mkdir(parents=True)
    (folder / "hollow").mkdir()
    (folder / "deep/er/file").write_bytes(b"content")
    (folder / "void").touch()
    (folder / "tool").write_bytes(b"#!/bin/sh\n")
    (folder / "tool").chmod(0o755)
    (folder / "link").symlink_to("deep/er/file")
    (folder / "dangling").symlink_to("nowhere")
    (folder / "loop").symlink_to("loop")
    (folder / os.fsdecode(b"not utf-8 \xff")).write_bytes(b"x")
    return folder


CHANGES = {
    "a byte of a file": lambda top: (top / "deep/er/file").write_bytes(b"contend"),
    "the length of a file": lambda top: (top / "void").write_bytes(b"\0"),
    "the name of a file": lambda top: (top / "void").rename(top / "avoid"),
    "a mode": lambda top: (top / "tool").chmod(0o644),
    "the mode of a folder": lambda top: (top / "hollow").chmod(0o700),
    "the target of a link": lambda top: (top / "link").unlink() or (top / "link").symlink_to("a"),
    "a file for a link": lambda top: (
        (top / "dangling").unlink(),
        (top / "dangling").write_bytes(b"nowhere"),
    ),
    "a new empty folder": lambda top: (top / "deep/hollow").mkdir(),
    "one empty file less": lambda top: (top / "void").unlink(),
    "a file for a folder": lambda top: ((top / "hollow").rmdir(), (top / "hollow").touch()),
}


def test_what_cannot_be_taken_is_named(tmp_path):
    top = tmp_path / "top"
    top.mkdir()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(top / "ear"))
        for take in (folder_digest, lambda path: copy_folder(path, str(tmp_path / "copy"))):
            with pytest.raises(OSError, match="neither a file, a folder nor a link") as caught:
                take(str(top))
            assert caught.value.filename == str(top / "ear")
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("top")
    for name in ("file", "link"):
        with pytest.raises(NotADirectoryError):
            folder_digest(str(tmp_path / name))


# As an ordinary user, whom permissions stop.
ORDINARY = """
import os, sys
from pathlib import Path
from flstream.model.folder_content import *

if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
os.mkdir("top")
os.mkdir("top/closed")
Path("top/closed/file").write_text("x")
Path("top/secret").write_text("x")
os.chmod("top/closed", 0o555)
assert copy_folder("top", "copy") == folder_digest("top") == folder_digest("copy")
remove_folder("copy")
assert not os.path.exists("copy")
os.chmod("top/secret", 0)
for take in (folder_digest, sync_folder, lambda path: copy_folder(path, "copy")):
    try:
        take("top")
    except PermissionError as error:
        assert error.filename == "top/secret", error
    else:
        raise AssertionError("it was read")
remove_folder("top")
assert os.listdir() == []
"""


def test_permissions_stop_reading_with_a_name_but_neither_copies_nor_removal(tmp_path):
    tmp_path.chmod(0o777)
    path = {"PYTHONPATH": str(Path(flstream.__file__).parent.parent)}
    subprocess.run([sys.executable, "-c", ORDINARY], cwd=tmp_path, env=path, check=True)


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_every_change_of_the_content_gives_another_digest(tmp_path, change):
    top = fill(tmp_path / "top")
    before = folder_digest(str(top))
    change(top)
    assert folder_digest(str(top)) != before


def test_the_digest_is_the_same_everywhere_and_whenever_the_content_was_made(tmp_path):
    """It is in the journals of runs that are to go on."""
    top = fill(tmp_path / "top")
    for path in (top, *top.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() else 0o644)
    digest = "494e451b9891d9c9b809a018d757abd8"
    assert folder_digest(str(top), writeback=True) == digest
    assert folder_bytes(str(top)) == len(b"content" + b"#!/bin/sh\n" + b"x")
    sync_folder(str(top))
    for path in (top, *top.rglob("*")):
        os.utime(path, (1, 1), follow_symlinks=False)
    assert folder_digest(str(top.rename(tmp_path / "other"))) == digest
    for order in ("ab", "ba"):
        for name in order:
            write(tmp_path / order / name, b"x")
    assert folder_digest(str(tmp_path / "ab")) == folder_digest(str(tmp_path / "ba"))


def test_names_and_contents_are_not_confused(tmp_path):
    """What is cut in other places is something else."""
    for number, (name, content) in enumerate([("ab", b"c"), ("a", b"bc"), ("abc", b"")]):
        write(tmp_path / f"{number}" / name, content)
    for number, names in enumerate([("a/x", "b/x"), ("a/b/x", "a/x")]):
        for name in names:
            write(tmp_path / f"deep{number}" / name, b"")
    assert len({folder_digest(str(top)) for top in tmp_path.iterdir()}) == 5


def test_a_copy_has_the_same_digest_modes_and_times(tmp_path):
    top = fill(tmp_path / "top")
    (top / "large").write_bytes(bytes(range(256)) * 10_000 + b"end")  # more than two pieces
    (top / "tool").chmod(0o500)
    (top / "deep").chmod(0o555)
    os.utime(top / "deep", (1, 2))
    os.utime(top / "void", (3, 4))
    found = copy_folder(str(top), str(tmp_path / "copy"))
    assert found == folder_digest(str(tmp_path / "copy")) == folder_digest(str(top))
    assert (tmp_path / "copy/large").read_bytes() == (top / "large").read_bytes()
    assert (tmp_path / "copy/void").stat().st_mtime == 4
    assert (tmp_path / "copy/deep").stat().st_mtime == 2
    assert (tmp_path / "copy/void").stat().st_ino != (top / "void").stat().st_ino
