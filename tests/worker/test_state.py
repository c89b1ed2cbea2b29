"""A site's own files: kept from training to training, whole or not at all, at any instant."""

import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from flstream.errors import ClientError
from flstream.model.folder_content import folder_digest
from flstream.runs.results import StateVersion
from flstream.runs.site_states import StateFolder
from flstream.worker.state import SiteState


def train(folder: Path, effect: int, base: StateVersion | None, text: str) -> StateVersion:
    """A training in which a site adds to two files and keeps them."""
    state = SiteState(str(folder), effect, base, is_kept=True)
    for name in ("notes", "second"):
        with (state.path / name).open("a") as file:
            file.write(text)
    version = state.keep()
    assert version is not None
    return version


def trained(folder: Path, *effects: int) -> list[StateVersion]:
    """The versions of trainings, each of which goes on from the one before."""
    versions: list[StateVersion] = []
    for effect in effects:
        versions.append(train(folder, effect, versions[-1] if versions else None, f"[{effect}]"))
    return versions


def seen(
    folder: Path, effect: int, base: StateVersion | None, *, kept: bool = True, oldest: int = 0
) -> str | None:
    """What a site finds in a task; nothing is kept of it."""
    state = SiteState(str(folder), effect, base, is_kept=kept, oldest=oldest)
    notes = state.path / "notes"
    text = notes.read_text() if notes.exists() else None
    state.discard()
    return text


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder / "state"))


def read(folder: Path, version: StateVersion, name: str) -> str:
    return (folder / "state" / version.folder_name / name).read_text()


def named(*versions: StateVersion) -> list[str]:
    return [version.folder_name for version in versions]


def test_a_training_finds_what_the_last_one_kept_and_what_a_run_may_go_back_to_stays(tmp_path):
    assert seen(tmp_path, 1, None) is None
    versions = trained(tmp_path, 1, 4, 5, 12, 20)
    assert names(tmp_path) == named(*versions)
    for version in versions:
        path = tmp_path / "state" / version.folder_name
        assert version.folder_name == f"effect-{version.effect:04d}.{folder_digest(str(path))}"
    # What the site had after effect 11 stays, and all since.
    assert seen(tmp_path, 21, versions[-1], oldest=11) == "[1][4][5][12][20]"
    assert names(tmp_path) == named(*versions[2:])
    # Each of them can be gone back to; an update may be lost when its site has trained since.
    assert train(tmp_path, 12, versions[2], "[12]") == versions[3]
    assert names(tmp_path) == named(*versions[2:])
    assert seen(tmp_path, 13, versions[2]) == "[1][4][5]"
    assert train(tmp_path, 12, versions[2], "[12]") == versions[3]
    assert train(tmp_path, 20, versions[3], "[20]") == versions[4]


def test_nothing_is_made_unless_it_is_asked_for_nor_after_the_answer(tmp_path):
    for kept in (True, False):
        assert SiteState(str(tmp_path), 1, None, is_kept=kept).keep() is None
        SiteState(str(tmp_path), 1, None, is_kept=kept).discard()
    assert list(tmp_path.iterdir()) == []
    [version] = trained(tmp_path, 1)
    assert SiteState(str(tmp_path), 2, version, is_kept=True).keep() is None
    assert names(tmp_path) == named(version)
    for end in (SiteState.keep, SiteState.discard):
        state = SiteState(str(tmp_path / "site-2"), 7, None, is_kept=True)
        assert state.path.is_dir()
        end(state)
        with pytest.raises(ClientError, match="site-2 has answered its task of effect 7"):
            _ = state.path


def test_an_evaluation_sees_the_state_and_no_attempt_that_came_to_nothing(tmp_path):
    versions = trained(tmp_path, 1, 2, 3)
    train(tmp_path, 4, versions[-1], "its update was never used")
    # One whose worker died, of which the next attempt sees nothing, either.
    (SiteState(str(tmp_path), 5, versions[-1], is_kept=True).path / "notes").write_text("half")
    last = train(tmp_path, 5, versions[-1], "[5]")
    assert names(tmp_path) == named(*versions, last)
    (tmp_path / "state/evaluate-0005.tmp").mkdir()  # of one that was killed
    state = SiteState(str(tmp_path), 6, last, is_kept=False)
    assert state.path.name == "evaluate-0006.tmp"
    assert (state.path / "notes").read_text() == "[1][2][3][5]"
    (state.path / "notes").write_text("spoilt")
    assert state.keep() is None
    # Nothing is removed where the base is not there.
    for base in (None, StateVersion(2, "0" * 32)):
        state = SiteState(str(tmp_path), 6, base, is_kept=True)
        with suppress(ClientError):
            _ = state.path
        state.discard()
        assert names(tmp_path) == named(*versions, last)


def swap_for_link(version: Path) -> None:
    version.symlink_to(version.rename(version.with_name("moved")).name)


DAMAGES = {
    "missing": (lambda path: path.rename(path.with_name("moved")), "is missing"),
    "deleted altogether": (lambda path: shutil.rmtree(path.parent), "is missing"),
    "changed": (lambda path: (path / "notes").write_bytes(b"[2]"), "has the digest"),
    "link": (swap_for_link, "not a folder"),
    "file": (lambda path: (path.rename(path.with_name("moved")), path.touch()), "not a folder"),
    "special": (lambda path: os.mkfifo(path / "pipe"), "pipe: it is neither a file"),
}


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize(("damage", "flaw"), DAMAGES.values(), ids=DAMAGES)
def test_a_missing_or_damaged_base_is_an_error_and_never_empty(tmp_path, kept, damage, flaw):
    folder = tmp_path / "site-3"
    versions = trained(folder, 1, 2)
    damage(folder / "state" / versions[1].folder_name)
    before = sorted(folder.glob("state/*"))
    state = SiteState(str(folder), 3, versions[1], is_kept=kept)
    with pytest.raises(ClientError, match="site-3 had after effect 2 cannot be used") as caught:
        _ = state.path
    assert flaw in str(caught.value)
    assert "put it back from a copy and go on with --resume" in str(caught.value)
    # Training code that catches it gets no further with another state.
    for again in (lambda: state.path, state.keep) * 2:
        with pytest.raises(ClientError, match="cannot be used"):
            again()
    state.discard()
    assert sorted(folder.glob("state/*")) == before


DIGEST = "0123456789abcdef0123456789abcdef"
FOREIGN = (
    "0003", "effect-0001", "effect-1.tmp", "effect-0001.tmp.bak", "evaluation-0001.tmp",
    f"effect-0001.{DIGEST}.bak", f"effect-0001.{DIGEST.upper()}", f"effect-00001.{DIGEST}",
    "effect-\N{ARABIC-INDIC DIGIT ONE}001.tmp",
)  # fmt: skip
OURS = f"effect-0002.{DIGEST}"
OUR_NAMES = ("effect-0001.tmp", "evaluate-0003.tmp", OURS, f"{OURS}.tmp")


def put_folder(path: Path, elsewhere: Path) -> None:
    path.mkdir()
    (path / "file").write_bytes(b"mine")


@pytest.mark.parametrize(
    ("put", "others"),
    [
        (lambda path, elsewhere: path.write_bytes(b"mine"), FOREIGN + OUR_NAMES),
        (lambda path, elsewhere: path.symlink_to(elsewhere), FOREIGN + OUR_NAMES),
        (put_folder, FOREIGN),
    ],
    ids=["file", "link", "folder"],
)
def test_what_was_not_made_here_survives_everything(tmp_path, put, others):
    folder, elsewhere = tmp_path / "site-1", tmp_path / "elsewhere"
    for made in (folder / "state", elsewhere):
        made.mkdir(parents=True)
    (elsewhere / "file").write_bytes(b"elsewhere")
    for name in others:
        put(folder / "state" / name, elsewhere)
    there = names(folder)
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    versions = trained(folder, 11, 12, 13, 14, 15)
    for kept in (True, False):
        assert seen(folder, 16, versions[-1], kept=kept, oldest=13) == "[11][12][13][14][15]"
    assert names(folder) == sorted([*there, *named(*versions[2:])])
    assert {path: path.read_bytes() for path in files} == files


def test_a_version_that_is_not_what_its_name_says_is_neither_used_nor_removed(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "state").symlink_to(tmp_path / "disk")  # a user's, on another disk
    versions = trained(tmp_path, 1, 2)
    noted = tmp_path / "disk" / versions[0].folder_name / "my remarks"
    noted.write_text("important")
    for effect in (3, 4, 5):
        versions.append(train(tmp_path, effect, versions[-1], f"[{effect}]"))
    assert seen(tmp_path, 6, versions[-1], oldest=4) is not None
    # There would be too many by then.
    assert noted.read_text() == "important"
    assert names(tmp_path) == named(versions[0], *versions[3:])
    with pytest.raises(ClientError, match="has the digest"):
        seen(tmp_path, 6, versions[0])


@pytest.mark.parametrize("make", [Path.mkdir, Path.touch, lambda path: path.symlink_to("x")])
def test_what_is_in_the_way_of_a_version_or_a_working_copy_is_named_and_stays(tmp_path, make):
    [version] = trained(tmp_path / "before", 3)
    path = tmp_path / "site-1/state" / version.folder_name
    path.parent.mkdir(parents=True)
    make(path)
    with pytest.raises(ClientError, match=f"{path.name}: it is in the way"):
        trained(tmp_path / "site-1", 3)
    assert names(tmp_path / "site-1") == sorted(["effect-0003.tmp", path.name])
    for base in (None, version):
        path = tmp_path / "before/state/effect-0004.tmp"
        path.write_text("mine")
        with pytest.raises(ClientError, match=r"cannot be laid out for effect 4: .*File exists"):
            seen(tmp_path / "before", 4, base)
        assert path.read_text() == "mine"


def test_a_state_that_cannot_be_kept_is_a_sentence(tmp_path):
    for spoil, words in (
        (Path.rmdir, ".*effect-0001.tmp: No such file"),
        (lambda path: os.mkfifo(path / "pipe"), ".*pipe: it"),
    ):
        state = SiteState(str(tmp_path / "site-2"), 1, None, is_kept=True)
        spoil(state.path)
        with pytest.raises(ClientError, match=rf"site-2 after effect 1 cannot be kept: {words}"):
            state.keep()


CHANGES = ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.symlink", "os.chmod", "os.utime")


def train_until(change: int, folder: Path, base: StateVersion) -> int:
    """Train in a process that dies before its change of the file system of a number."""
    child = os.fork()
    if child == 0:
        left = iter(range(change - 1))

        def at_each(event: str, args: Any) -> None:
            writes = event == "open" and args[2] & (os.O_WRONLY | os.O_RDWR)
            if (writes or event in CHANGES) and next(left, None) is None:
                os._exit(9)

        sys.addaudithook(at_each)
        train(folder, 5, base, "5")
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_kill_at_any_instant_leaves_the_old_state_or_the_new_one(tmp_path):
    """Killed before each change to the file system, with what earlier attempts have left."""
    change, ended, outcomes = 0, 9, set()
    while ended == 9:
        change += 1
        folder = tmp_path / f"site-{change}"
        versions = trained(folder, 1, 2, 3, 4)
        lost = train(folder, 5, versions[-1], "lost")
        half = SiteState(str(folder), 5, versions[-1], is_kept=True).path
        (half / "notes").unlink()
        ended = train_until(change, folder, versions[-1])
        assert ended in (0, 9)
        states = StateFolder(str(folder))
        present = states.versions()
        # Each that has the name of a whole one is whole, and those that count are there.
        assert [states.flaw(version) for version in present] == [None] * len(present)
        assert set(versions) <= set(present)
        attempts = [each for each in present if each.effect == 5]
        outcomes.add(frozenset(read(folder, each, "notes") for each in attempts))
        # The worker's successor does the training again, and comes to what was to come.
        new = train(folder, 5, versions[-1], "5")
        assert names(folder) == named(*versions, new)
        assert read(folder, new, "notes") == read(folder, new, "second") == "[1][2][3][4]5"
        assert new != lost
    old, done = "[1][2][3][4]lost", "[1][2][3][4]5"
    assert outcomes == {frozenset(kind) for kind in ({old}, {old, done}, {done})}
    assert change > 15
