"""Which versions of the sites' states a resume needs: no more and no less than a replay uses."""

import pytest
from journal_support import fold_record, train_record

from flstream.client.state import SiteState, StateVersion
from flstream.errors import ResumeRefusedError
from flstream.runs.needed_states import needed_states, with_sound_states
from flstream.runs.run_directory import RunDirectory
from flstream.telemetry.events import EffectDone, ModelRecord


def version(effect: int) -> StateVersion:
    return StateVersion(effect, f"{effect:032x}")


def trained(effect: int, *sites: str, without: tuple[str, ...] = ()) -> EffectDone:
    """A training after which each site has a state, but for those without one."""
    states = {site: version(effect) for site in sites if site not in without}
    return train_record(effect, effect, states, list(sites))


def folded(effect: int, training: int, *sites: str, refused: tuple[str, ...] = ()) -> EffectDone:
    model = ModelRecord(effect, effect, 0, "d" * 32)
    return fold_record(effect, model, training, list(sites), dict.fromkeys(refused, "no"))


def effects(versions) -> dict[str, int]:
    return {site: each.effect for site, each in versions.items()}


def needed(*records: EffectDone) -> tuple[dict[str, int], dict[str, int]]:
    found = needed_states(records)
    return effects(found.newest), effects(found.before)


def test_without_effects_nothing_is_needed():
    assert needed() == ({}, {})


def test_what_is_in_a_model_needs_the_newest_state_of_each_site():
    first = [trained(1, "site-1", "site-2"), folded(2, 1, "site-1", "site-2")]
    assert needed(*first) == ({"site-1": 1, "site-2": 1}, {})
    # Of a cohort that is drawn anew, each site has that of its own last training.
    second = [trained(3, "site-2", "site-3"), folded(4, 3, "site-2", "site-3")]
    assert needed(*first, *second) == ({"site-1": 1, "site-2": 3, "site-3": 3}, {})


def test_a_training_that_is_in_no_model_may_have_to_be_repeated_with_what_was_before():
    first = [trained(1, "site-1"), folded(2, 1, "site-1")]
    assert needed(*first, trained(3, "site-1", "site-2")) == (
        {"site-1": 3, "site-2": 3},
        {"site-1": 1},  # site-2 began with an empty state
    )


def test_a_site_that_has_not_asked_for_its_state_still_has_the_one_before():
    first = [trained(1, "site-1"), folded(2, 1, "site-1")]
    assert needed(*first, trained(3, "site-1", without=("site-1",))) == (
        {"site-1": 1},
        {"site-1": 1},
    )
    assert needed(trained(1, "site-1", without=("site-1",))) == ({}, {})


def test_a_site_whose_update_was_refused_goes_back_to_what_it_was():
    first = [trained(1, "site-1", "site-2"), folded(2, 1, "site-1", "site-2")]
    second = [trained(3, "site-1", "site-2"), folded(4, 3, "site-1", "site-2", refused=("site-1",))]
    assert needed(*first, *second) == ({"site-1": 1, "site-2": 3}, {})
    refused_at_once = folded(2, 1, "site-1", "site-2", refused=("site-2",))
    assert needed(first[0], refused_at_once) == ({"site-1": 1}, {})


def test_an_update_that_the_program_has_left_out_is_not_made_again():
    first = [trained(1, "site-1", "site-2"), folded(2, 1, "site-1", "site-2")]
    second = [trained(3, "site-1", "site-2"), folded(4, 3, "site-1")]
    assert needed(*first, *second) == ({"site-1": 3, "site-2": 3}, {})


def test_of_two_trainings_that_wait_the_one_that_is_folded_leaves_the_other():
    records = [trained(1, "site-1"), trained(2, "site-1"), folded(3, 1, "site-1")]
    assert needed(*records) == ({"site-1": 2}, {"site-1": 1})
    assert needed(*records, folded(4, 2, "site-1")) == ({"site-1": 2}, {})


@pytest.fixture
def run(tmp_path) -> RunDirectory:
    return RunDirectory.create("job", tmp_path / "run")


def kept(run: RunDirectory, *numbers: int) -> dict[int, StateVersion]:
    """The versions that site-1 has kept in these effects."""
    versions: dict[int, StateVersion] = {}
    base = None
    for number in numbers:
        state = SiteState(str(run.site("site-1")), number, base, kept=True)
        (state.path / "notes").write_text(f"{number}")
        base = state.keep()
        assert base is not None
        versions[number] = base
    return versions


def a_record(effect: int, versions: dict[int, StateVersion]) -> EffectDone:
    return train_record(effect, effect, {"site-1": versions[effect]}, ["site-1"])


def damage(run: RunDirectory, version: StateVersion) -> None:
    (run.site("site-1") / "state" / version.folder_name / "notes").write_text("other")


@pytest.mark.parametrize(("damaged", "left"), [(None, 3), (3, 2), (1, None)])
def test_a_training_whose_state_is_damaged_is_done_again_from_what_was_before(run, damaged, left):
    versions = kept(run, 1, 3)
    records = [a_record(1, versions), folded(2, 1, "site-1"), a_record(3, versions)]
    if damaged is not None:
        damage(run, versions[damaged])
    if left is None:
        with pytest.raises(ResumeRefusedError, match="that of site-1 after effect 1: "):
            with_sound_states(run, records)
    else:
        assert with_sound_states(run, records) == records[:left]


def test_a_state_that_is_part_of_a_model_has_no_other_one(run):
    versions = kept(run, 1, 3)
    records = [a_record(1, versions), folded(2, 1, "site-1")]
    records += [a_record(3, versions), folded(4, 3, "site-1")]
    assert with_sound_states(run, records) == records
    damage(run, versions[1])
    assert with_sound_states(run, records) == records
    damage(run, versions[3])
    with pytest.raises(ResumeRefusedError, match=r"site-1 after effect 3: .* has the digest"):
        with_sound_states(run, records)
