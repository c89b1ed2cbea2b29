"""A site's own files: kept from round to round, whole or not at all, whatever instant it is."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flstream
from flstream.client.state import SiteState, discard_after
from flstream.errors import ClientError


def train(folder: Path, round_number: int, text: str) -> None:
    """A round in which a site adds to a file and keeps it."""
    state = SiteState(str(folder), round_number, kept=True)
    with (state.path / "notes").open("a") as file:
        file.write(text)
    state.keep()


def seen(folder: Path, round_number: int, *, kept: bool = True) -> str | None:
    """What a site finds in a round; nothing is kept of it."""
    state = SiteState(str(folder), round_number, kept=kept)
    notes = state.path / "notes"
    text = notes.read_text() if notes.exists() else None
    state.discard()
    return text


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder / "state"))


def test_a_round_finds_what_the_last_one_kept_and_two_versions_stay(tmp_path):
    assert seen(tmp_path, 1) is None
    for number, text in ((1, "a"), (4, "b"), (5, "c")):
        train(tmp_path, number, text)
    assert seen(tmp_path, 6) == "abc"
    assert names(tmp_path) == ["0004", "0005"]
    assert (tmp_path / "state/0004/notes").read_text() == "ab"


def test_nothing_is_made_unless_it_is_asked_for(tmp_path):
    SiteState(str(tmp_path), 1, kept=True).keep()
    SiteState(str(tmp_path), 1, kept=True).discard()
    SiteState(str(tmp_path), 1, kept=False).keep()
    assert list(tmp_path.iterdir()) == []
    train(tmp_path, 1, "a")
    SiteState(str(tmp_path), 2, kept=True).keep()
    assert names(tmp_path) == ["0001"]


def test_what_a_failed_attempt_left_is_gone(tmp_path):
    train(tmp_path, 1, "a")
    state = SiteState(str(tmp_path), 2, kept=True)
    (state.path / "notes").write_text("spoilt")
    state.discard()
    assert names(tmp_path) == ["0001"]
    assert seen(tmp_path, 2) == "a"


def test_an_evaluation_sees_its_rounds_state_and_keeps_nothing(tmp_path):
    train(tmp_path, 1, "a")
    train(tmp_path, 2, "b")
    state = SiteState(str(tmp_path), 2, kept=False)
    assert (state.path / "notes").read_text() == "ab"
    (state.path / "notes").write_text("spoilt")
    state.keep()
    assert names(tmp_path) == ["0001", "0002"]
    assert seen(tmp_path, 3) == "ab"


def test_a_round_that_is_done_again_starts_from_the_round_before(tmp_path):
    """The first attempt kept its state, and then its worker died before the update was used."""
    train(tmp_path, 1, "a")
    train(tmp_path, 2, "lost")
    train(tmp_path, 2, "b")
    assert (tmp_path / "state/0002/notes").read_text() == "ab"
    train(tmp_path, 3, "lost")
    SiteState(str(tmp_path), 3, kept=True).discard()  # the second attempt failed
    assert seen(tmp_path, 4) == "ab"


def test_once_the_task_is_answered_the_state_is_closed(tmp_path):
    state = SiteState(str(tmp_path), 2, kept=True)
    assert state.path.is_dir()
    state.keep()
    with pytest.raises(ClientError, match="round 2 was answered"):
        _ = state.path


def test_a_resumed_run_takes_the_state_back(tmp_path):
    for number in (1, 2, 3):
        train(tmp_path, number, str(number))
    (tmp_path / "state/0004.tmp").mkdir()
    discard_after(tmp_path, 2)
    assert names(tmp_path) == ["0002"]
    assert seen(tmp_path, 3) == "12"
    discard_after(tmp_path, 0)
    assert names(tmp_path) == []
    discard_after(tmp_path / "never-ran", 0)


def test_folders_and_links_in_the_state_are_kept(tmp_path):
    state = SiteState(str(tmp_path), 1, kept=True)
    (state.path / "deep/er").mkdir(parents=True)
    (state.path / "deep/er/file").write_text("x")
    (state.path / "link").symlink_to("deep/er/file")
    (state.path / "dangling").symlink_to("nowhere")
    state.keep()
    state = SiteState(str(tmp_path), 2, kept=True)
    assert (state.path / "link").read_text() == "x"
    assert (state.path / "link").is_symlink()
    assert os.readlink(state.path / "dangling") == "nowhere"
    state.keep()


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from(["keep", "fail", "skip", "resume"])),
        max_size=12,
    )
)
def test_the_state_is_that_of_the_rounds_that_count(tmp_path_factory, steps):
    """Rounds that count, that fail, that are done again, and resumes, in any order."""
    folder = tmp_path_factory.mktemp("site")
    counted: dict[int, str] = {}
    number = 1
    for back, what in steps:
        if what == "resume":
            # A resume goes back by a round at most, the one that was not yet completed.
            number = max(number - min(back, 1), 1)
            discard_after(folder, number - 1)
            counted = {k: v for k, v in counted.items() if k < number}
            continue
        due = counted.get(max(counted)) if counted else None
        assert seen(folder, number) == due
        if what == "keep":
            text = f"[{number}]"
            train(folder, number, text)
            counted[number] = (due or "") + text
        number += 1
    assert seen(folder, number) == (counted[max(counted)] if counted else None)


# Counts the calls that change the file system, and ends the process at one of them.
KILLED = """
import os, sys

folder, at = sys.argv[1], int(sys.argv[2])
count = 0

def at_each(event, args):
    global count
    writes = event == "open" and args[2] & (os.O_WRONLY | os.O_RDWR)
    if writes or event in ("os.rename", "os.remove", "os.rmdir", "os.mkdir"):
        count += 1
        if count == at:
            os._exit(9)

from flstream.client.state import SiteState
sys.addaudithook(at_each)
state = SiteState(folder, 3, kept=True)
for name in ("first", "second"):
    with open(state.path / name, "a") as file:
        file.write("3")
state.keep()
"""


def test_a_kill_at_any_instant_leaves_the_old_state_or_the_new_one(tmp_path):
    """Killed before each change it makes to the file system, with a rest of an earlier attempt."""
    at, outcomes = 0, set()
    ended = 9
    while ended == 9:
        at += 1
        folder = tmp_path / f"site-{at}"
        for number in (1, 2, 3):
            state = SiteState(str(folder), number, kept=True)
            for name in ("first", "second"):
                with (state.path / name).open("a") as file:
                    file.write(str(number) if number < 3 else "lost")
            state.keep()
        command = [sys.executable, "-c", KILLED, str(folder), str(at)]
        path = {"PYTHONPATH": str(Path(flstream.__file__).parent.parent)}
        ended = subprocess.run(command, env={**os.environ, **path}, check=False).returncode
        assert ended in (0, 9)
        # The worker's successor does round 3 again; or round 3 counts and round 4 comes.
        after = _both(folder, 4)
        assert after in ("12", "123", "12lost")
        outcomes.add(after)
        discard_after(folder, 2)
        assert _both(folder, 3) == "12"
    assert outcomes == {"12", "123", "12lost"}
    assert at > 10


def _both(folder: Path, round_number: int) -> str:
    state = SiteState(str(folder), round_number, kept=True)
    first, second = ((state.path / name).read_text() for name in ("first", "second"))
    state.discard()
    assert first == second
    return first
