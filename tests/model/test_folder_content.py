"""A folder's digest: all that training code finds there, and nothing else."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from folders import CHANGES, fill
from hypothesis import given, settings
from hypothesis import strategies as st

import flstream
from flstream.model.folder_content import (
    copy_folder,
    folder_bytes,
    folder_digest,
    remove_folder,
    sync_folder,
)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_every_change_of_the_content_gives_another_digest(tmp_path, change):
    top = fill(tmp_path / "top")
    before = folder_digest(str(top))
    change(top)
    assert folder_digest(str(top)) != before


def test_times_and_places_are_no_part_of_the_digest(tmp_path):
    top = fill(tmp_path / "top")
    before = folder_digest(str(top), writeback=True)
    for path in (top, *top.rglob("*")):
        os.utime(path, (1, 1), follow_symlinks=False)
    assert folder_digest(str(top.rename(tmp_path / "other"))) == before


def test_the_digest_is_the_same_in_every_version_and_on_every_machine(tmp_path):
    """It is in the journals of runs that are to go on."""
    top = fill(tmp_path / "top")
    for path in (top, *top.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() else 0o644)
    assert folder_digest(str(top)) == "494e451b9891d9c9b809a018d757abd8"


def test_a_copy_has_the_same_digest_modes_and_times(tmp_path):
    top = fill(tmp_path / "top")
    (top / "tool").chmod(0o500)
    (top / "deep").chmod(0o555)
    os.utime(top / "deep", (1, 2))
    os.utime(top / "void", (3, 4))
    found = copy_folder(str(top), str(tmp_path / "copy"))
    assert found == folder_digest(str(tmp_path / "copy")) == folder_digest(str(top))
    assert (tmp_path / "copy/void").stat().st_mtime == 4
    assert (tmp_path / "copy/deep").stat().st_mtime == 2
    assert (tmp_path / "copy/void").stat().st_ino != (top / "void").stat().st_ino


def test_a_large_file_is_copied_in_pieces_with_the_digest_of_all_of_it(tmp_path):
    top = tmp_path / "top"
    top.mkdir()
    data = bytes(range(256)) * 10_000 + b"end"  # two pieces of 1 MiB, and a part of one
    (top / "large").write_bytes(data)
    found = copy_folder(str(top), str(tmp_path / "copy"))
    assert (tmp_path / "copy/large").read_bytes() == data
    for at in (0, 1 << 20, len(data) - 1):
        changed = bytearray(data)
        changed[at] ^= 1
        (top / "large").write_bytes(changed)
        assert folder_digest(str(top)) != found


@settings(max_examples=60)
@given(
    st.dictionaries(
        st.text("abé. -", min_size=1, max_size=4).filter(lambda name: name not in (".", "..")),
        st.binary(max_size=6) | st.none(),
        max_size=6,
    ),
    st.randoms(use_true_random=False),
)
def test_the_order_in_which_things_were_made_does_not_matter(tmp_path_factory, content, random):
    """None stands for a folder."""
    digests = set()
    for _ in range(2):
        top = tmp_path_factory.mktemp("top")
        names = list(content)
        random.shuffle(names)
        for name in names:
            if content[name] is None:
                (top / name).mkdir()
            else:
                (top / name).write_bytes(content[name])
        digests.add(folder_digest(str(top)))
    assert len(digests) == 1


def test_names_and_contents_are_not_confused(tmp_path):
    """What is cut in other places is something else."""
    digests = set()
    for number, (name, content) in enumerate([("ab", b"c"), ("a", b"bc"), ("abc", b"")]):
        top = tmp_path / str(number)
        top.mkdir()
        (top / name).write_bytes(content)
        digests.add(folder_digest(str(top)))
    for number, names in enumerate([("a", "b"), ("a", "a/b"), ("a/b", "a")]):
        top = tmp_path / f"folders-{number}"
        for name in names:
            (top / name).mkdir(parents=True, exist_ok=True)
        digests.add(folder_digest(str(top)))
    assert len(digests) == 5  # the last two are the same


# With less of a stack than there are folders in folders.
NESTED = """
import os, sys
from flstream.model.folder_content import *

os.makedirs("top" + "/x" * 150)
sys.setrecursionlimit(100)
assert copy_folder("top", "copy") == folder_digest("copy")
for name in ("top", "copy"):
    sync_folder(name)
    remove_folder(name)
assert os.listdir() == []
"""


def in_folder(folder: Path, text: str, *args: str) -> str:
    """Run a program in a folder, and return what it prints."""
    path = {"PYTHONPATH": str(Path(flstream.__file__).parent.parent)}
    line = [sys.executable, "-c", text, *args]
    return subprocess.run(
        line, cwd=folder, env=path, check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def test_folders_may_be_nested_deeper_than_pythons_stack(tmp_path):
    in_folder(tmp_path, NESTED)


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


def test_the_size_is_that_of_the_files_alone(tmp_path):
    top = fill(tmp_path / "top")
    assert folder_bytes(str(top)) == len(b"content" + b"#!/bin/sh\n" + b"x")


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
remove_folder("copy")
remove_folder("top")
assert os.listdir() == []
"""


def test_permissions_stop_reading_with_a_name_but_neither_copies_nor_removal(tmp_path):
    tmp_path.chmod(0o777)
    in_folder(tmp_path, ORDINARY)


# Counts what is opened and listed, and what is read and written, while a folder of so many files
# is copied and its digest taken.
COUNTED = """
import os, sys
from pathlib import Path
from flstream.model.folder_content import copy_folder, folder_digest

os.mkdir("top")
for number in range(int(sys.argv[1])):
    Path(f"top/{number}").write_text(str(number))
counts = {"open": 0, "os.scandir": 0, "os.listdir": 0, "os.mkdir": 0}

def count(event, args):
    if event in counts:
        counts[event] += 1

def transferred():
    lines = Path("/proc/self/io").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("sysc"))

before = transferred()
sys.addaudithook(count)
copy_folder("top", "copy")
folder_digest("copy")
print(counts["open"], sum(counts.values()) - counts["open"], transferred() - before)
"""


def test_ten_thousand_small_files_take_a_few_system_calls_each(tmp_path):
    files = 10_000
    # The calls are the same on every file system, and this one is quick.
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else tmp_path
    with TemporaryDirectory(dir=memory) as folder:
        done = in_folder(Path(folder), COUNTED, str(files))
    opened, listed, transfers = (int(word) for word in done.split())
    # Each file is opened to be copied from, to be copied to, and for its digest.
    assert opened <= 3 * files + 20
    assert listed <= 20
    # It is read up to its end twice, which takes two calls, and written once.
    assert transfers <= 5 * files + 100


def test_what_is_synced_stays_as_it_is(tmp_path):
    top = fill(tmp_path / "top")
    before = folder_digest(str(top), writeback=True)
    sync_folder(str(top))
    assert folder_digest(str(top)) == before
    (tmp_path / "link").symlink_to("top")
    with pytest.raises(NotADirectoryError):
        sync_folder(str(tmp_path / "link"))
    remove_folder(str(top))
    assert not top.exists()
