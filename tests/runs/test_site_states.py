"""The sites' states before a run goes on: all there and sound, and none of a later effect."""

import itertools
import os
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from flstream.errors import ResumeRefusedError, SimulationError
from flstream.runs.results import StateVersion
from flstream.runs.run_directory import RunDirectory
from flstream.runs.site_states import (
    StateFolder,
    check_states,
    discard_site_state_after,
    state_bytes,
)
from flstream.worker.state import SiteState


@pytest.fixture
def run(tmp_path):
    return RunDirectory.create("job", tmp_path / "run")


def trained(run: RunDirectory, site: str, *effects: int, size: int = 10) -> list[StateVersion]:
    """The versions that a site's trainings have left."""
    versions: list[StateVersion] = []
    for effect in effects:
        base = versions[-1] if versions else None
        state = SiteState(str(run.site(site)), effect, base, is_kept=True)
        (state.path / "notes").write_text(str(effect).ljust(size))
        version = state.keep()
        assert version is not None
        versions.append(version)
    return versions


def path_of(run, site, version):
    return Path(StateFolder(str(run.site(site))).path_of(version))


def there(run, site):
    return StateFolder(str(run.site(site))).versions()


def everything(folder):
    """All that is in a folder, links as what they lead to, folders as None."""

    def content(path):
        if path.is_symlink():
            return os.readlink(path)
        return path.read_bytes() if path.is_file() else None

    return {str(path.relative_to(folder)): content(path) for path in folder.rglob("*")}


SITES = [f"site-{number}" for number in range(1, 10)]
DAMAGES = {
    "missing": (shutil.rmtree, "is missing"),
    "its site's folder is": (lambda path: shutil.rmtree(path.parent.parent), "is missing"),
    "longer": (lambda path: (path / "notes").write_text("4".ljust(11)), "has the digest"),
    "a file": (lambda path: (shutil.rmtree(path), path.touch()), "it is not a folder"),
    "with a pipe": (lambda path: os.mkfifo(path / "pipe"), "pipe: it is neither a file"),
}


@pytest.mark.parametrize(("damage", "flaw"), DAMAGES.values(), ids=DAMAGES)
def test_a_state_that_is_missing_or_damaged_is_refused_with_its_name(run, damage, flaw):
    needed = {f"site-{n}": trained(run, f"site-{n}", 1, 4)[-1] for n in (1, 2)}
    before = everything(run.path)
    check_states(run, needed.items())
    assert everything(run.path) == before
    damage(path_of(run, "site-2", needed["site-2"]))
    with pytest.raises(ResumeRefusedError) as caught:
        check_states(run, needed.items())
    message = str(caught.value)
    for words in ("that of site-2 after effect 4", flaw, "put them back from a copy"):
        assert words in message
    assert "site-1 after" not in message
    many = [(f"site-{n}", StateVersion(n, "0" * 32)) for n in range(3, 14)]
    with pytest.raises(ResumeRefusedError, match=r"that of site-5 .*; and 8 more"):
        check_states(run, many)


def test_states_of_later_effects_are_discarded_and_those_before_stay(run):
    versions = {site: trained(run, site, 2, 4, 6, 8) for site in ("site-1", "site-2", "site-10")}
    unfinished = SiteState(str(run.site("site-1")), 9, versions["site-1"][3], is_kept=True).path
    scored = SiteState(str(run.site("site-2")), 9, versions["site-2"][3], is_kept=False).path
    discard_site_state_after(run.site("site-1"), 5)
    discard_site_state_after(run.site("site-2"), 5, versions["site-2"][2])
    assert not unfinished.exists()
    assert not scored.exists()
    assert there(run, "site-1") == versions["site-1"][:2]
    assert there(run, "site-2") == versions["site-2"][:3]
    assert there(run, "site-10") == versions["site-10"]
    discard_site_state_after(run.site("site-10"), 0)
    assert there(run, "site-10") == []


def test_what_is_not_a_sites_state_is_left_as_it_is(run, tmp_path):
    """Files, links, and a copy of a site's folder that somebody has made to be sure."""
    version = trained(run, "site-1", 3)[-1]
    path = path_of(run, "site-1", version)
    for name in ("site-1.bak", "site-0", "site-01", "notes", "site-1 (copy)"):
        shutil.copytree(run.site("site-1"), run.sites / name)
    (run.sites / "site-9").write_text("mine")
    shutil.copytree(run.site("site-1"), tmp_path / "elsewhere")
    (run.sites / "site-8").symlink_to(tmp_path / "elsewhere")
    run.site("site-5").mkdir()
    (run.site("site-5") / "state").symlink_to(tmp_path / "elsewhere/state")
    for name in ("0004", "effect-0009", "mine.tmp", path.name + ".bak"):
        (path.parent / name).mkdir()
        (path.parent / name / "file").write_text("mine")
    (path.parent / "effect-0008.tmp").write_text("mine")
    (path.parent / "evaluate-0008.tmp").symlink_to(tmp_path / "elsewhere")
    (path.parent / f"effect-0008.{'0' * 32}").mkdir()
    before = everything(tmp_path)
    discard_site_state_after(run.site("site-1"), 3)
    for name in ("site-5", "site-8", "site-9", "site-11"):
        discard_site_state_after(run.site(name), 0)
    assert everything(tmp_path) == before
    discard_site_state_after(run.site("site-1"), 0)
    gone = str(path.relative_to(tmp_path))
    assert everything(tmp_path) == {
        name: content
        for name, content in before.items()
        if name != gone and not name.startswith(f"{gone}/")
    }


class CutOffError(Exception):
    pass


def test_discarding_can_be_cut_off_at_any_change_and_done_again(run, monkeypatch):
    done = False
    for place in itertools.count(1):
        changes = itertools.count(1)

        def cutting(function, changes=changes, place=place):
            def cut(*args, **kwargs):
                if next(changes) == place:
                    raise CutOffError
                return function(*args, **kwargs)

            return cut

        shutil.rmtree(run.site("site-1"), ignore_errors=True)
        versions = trained(run, "site-1", 3, 4, 5)
        with monkeypatch.context() as patch:
            for name in ("rename", "unlink", "rmdir"):
                patch.setattr(os, name, cutting(getattr(os, name)))
            with suppress(CutOffError):
                discard_site_state_after(run.site("site-1"), 3)
                done = True
        for version in there(run, "site-1"):
            assert StateFolder(str(run.site("site-1"))).flaw(version) is None
        discard_site_state_after(run.site("site-1"), 3)
        assert os.listdir(run.site("site-1") / "state") == [versions[0].folder_name]
        if done:
            break
    assert place == 7  # two versions, each with three changes, and none after them


def test_what_somebody_has_written_is_in_the_way_or_left_as_it_is(run):
    versions = trained(run, "site-1", 3, 4)
    remarks = path_of(run, "site-1", versions[1]) / "remarks"
    remarks.write_text("important")
    discard_site_state_after(run.site("site-1"), 0)
    assert remarks.read_text() == "important"
    assert there(run, "site-1") == versions[1:]
    versions = trained(run, "site-4", 3)
    blocked = Path(f"{path_of(run, 'site-4', versions[0])}.tmp")
    blocked.write_text("somebody else's")
    with pytest.raises(SimulationError, match=r"the state of site-4 cannot be taken back: .*; put"):
        discard_site_state_after(run.site("site-4"), 0)
    assert blocked.read_text() == "somebody else's"
    assert there(run, "site-4") == versions


def test_the_disk_that_states_may_still_take_is_that_of_so_many_of_the_newest(run):
    assert state_bytes(run, SITES, 4) == 0
    trained(run, "site-1", 1, size=100)
    assert state_bytes(run, SITES, 4) == 3 * 100
    trained(run, "site-2", 1, 2, 3, size=7)
    assert state_bytes(run, SITES, 4) == 3 * 100 + 7
    trained(run, "site-3", 1, 2, 3, 4, 5, size=7)
    (run.sites / "site-9").write_text("mine")
    shutil.copytree(run.site("site-1"), run.sites / "copy")
    assert state_bytes(run, SITES, 4) == 3 * 100 + 7
    shutil.rmtree(run.sites)
    with pytest.raises(SimulationError, match=r"sites: No such file .* go on with --resume"):
        state_bytes(run, SITES, 4)
