"""What ``benchmarks/damage.py`` asks of a resume, and some of its seeded cases."""

import json
import random

import damage
import pytest
from damage import SCENARIO, damaged, missing, verdict
from kills import Reference
from run_files import KeptRun, changes, flip
from simulating import Outcome

BITS = {
    "model": {"digest": "a"},
    "metrics": [1.0],
    "best": {"round": 1},
    "rounds_completed": 4,
    "status": "finished",
}
REFERENCE = Reference(BITS, 100, 30, 1.0, 10, "")
REFUSED = Outcome(2, {}, "error: the state of site-1 after round 1 is gone; copy it back\n")


def make_run(path, rounds, states, *, in_flight=False, name="{number:04d}"):
    """A run directory of so many rounds in which one site trains, with these of its states."""
    events = [{"kind": "model_ready"}]
    (path / "checkpoints").mkdir()
    for number in range(rounds + 1):
        (path / "checkpoints" / f"round-{number:04d}.safetensors").touch()
    for number in range(1, rounds + 1):
        events.append({"kind": "site_update", "round": number, "site": "site-1"})
        events.append({"kind": "round_finished", "round": number})
    if in_flight:
        events.append({"kind": "site_update", "round": rounds + 1, "site": "site-1"})
    for number in states:
        folder = path / "sites" / "site-1" / "state" / name.format(number=number)
        folder.mkdir(parents=True)
        (folder / "momentum.json").write_text(json.dumps({"round": number, "momentum": 0.5}))
    (path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return KeptRun.of(path)


@pytest.mark.parametrize(
    ("rounds", "states", "in_flight", "flipped", "lacks"),
    [
        (6, [4, 5, 6], False, 0, ""),
        (6, [4, 5, 6], False, 2, ""),
        # Two states were kept instead of three: the run should have had it.
        (6, [5, 6], False, 2, ""),
        (6, [5, 6, 7], True, 1, ""),
        (6, [5, 6, 7], True, 2, "the state of site-1 after round 4, 3 trainings ago"),
        # It is older than has to be kept, but it is there.
        (6, [4, 5, 6, 7], True, 2, ""),
        (2, [1, 2], False, 2, ""),
        (1, [1], False, 2, "a model"),
    ],
)
def test_a_run_has_to_resume_where_states_reach_back_three_trainings(
    tmp_path, rounds, states, in_flight, flipped, lacks
):
    kept = make_run(tmp_path, rounds, states, in_flight=in_flight)
    for number in range(rounds, rounds - flipped, -1):
        del kept.checkpoints[number]
    assert missing(kept, set()) == lacks


@pytest.mark.parametrize(
    ("name", "count"), [("{number:04d}", 3), ("effect-{number:04d}.c0ffee", 3), ("{number}.tmp", 0)]
)
def test_states_are_found_whatever_their_versions_are_called(tmp_path, name, count):
    assert len(make_run(tmp_path, 6, [4, 5, 6], name=name).states) == count


def test_a_state_that_was_damaged_may_be_refused_only_where_it_is_needed(tmp_path):
    kept = make_run(tmp_path, 6, [4, 5, 6])
    assert missing(kept, {("site-1", 5)}) == ""
    assert missing(kept, {("site-1", 6)}) != ""
    assert missing(kept, {("site-2", 6)}) == ""


def test_a_journal_that_was_cut_makes_a_run_fall_back(tmp_path):
    kept = make_run(tmp_path, 6, [4, 5, 6])
    journal = tmp_path / "events.jsonl"
    journal.write_bytes(journal.read_bytes()[: journal.stat().st_size // 2])
    assert kept.recorded_rounds() == [0, 1, 2, 3][: len(kept.recorded_rounds())]
    assert "trainings ago" in missing(kept, set())


@pytest.mark.parametrize(
    ("done", "lacks", "changed", "foreign", "wrong"),
    [
        (Outcome(0, BITS, ""), "", [], [], ""),
        (Outcome(0, BITS, ""), "a model", ["a file of the run"], [], ""),
        (Outcome(0, {**BITS, "model": {"digest": "b"}}, ""), "", [], [], "digest"),
        (Outcome(0, {**BITS, "metrics": [2.0]}, ""), "", [], [], "metrics"),
        (Outcome(0, BITS, ""), "", [], ["notes.txt"], "notes.txt"),
        (REFUSED, "a state", [], [], ""),
        (REFUSED, "", [], [], "refused, though nothing was missing"),
        (REFUSED, "a state", ["events.jsonl"], [], "removed or altered"),
        (REFUSED._replace(status=1), "a state", [], [], "exit status 1"),
        (REFUSED._replace(errors="Traceback (most"), "a state", [], [], "no single sentence"),
        (REFUSED._replace(errors="error: one\ntwo\n"), "a state", [], [], "no single sentence"),
        (REFUSED._replace(errors=""), "a state", [], [], "no single sentence"),
    ],
)
def test_a_resume_ends_in_the_same_bits_or_in_a_sentence(done, lacks, changed, foreign, wrong):
    found = verdict(REFERENCE, done, lacks, changed, foreign)
    assert wrong in found
    assert bool(found) == bool(wrong)


def test_files_that_were_removed_or_altered_are_seen_and_new_lines_are_not():
    before = {"a": b"1", "b": b"2", "events.jsonl": b"one\ntor", "memory.jsonl": b"one\n"}
    after = {"a": b"1", "new": b"", "events.jsonl": b"one\ntwo\n", "memory.jsonl": b"other\n"}
    assert changes(before, after) == ["b", "memory.jsonl"]


def test_a_flip_changes_one_byte_of_the_body(tmp_path):
    header = b"{}      "
    whole = len(header).to_bytes(8, "little") + header + bytes(64)
    path = tmp_path / "model.safetensors"
    path.write_bytes(whole)
    flip(path, random.Random(1))
    flipped = path.read_bytes()
    changed = [
        index for index, pair in enumerate(zip(whole, flipped, strict=True)) if len({*pair}) > 1
    ]
    assert len(changed) == 1
    assert changed[0] >= 16


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    return Reference.of(SCENARIO, tmp_path_factory.mktemp("damage"))


@pytest.mark.nightly
@pytest.mark.parametrize("case", [0, 1, 6])
def test_a_damaged_run_resumes_to_the_same_bits_or_is_refused(reference, tmp_path, case):
    what, outcome, wrong = damaged(reference, tmp_path, case)
    assert wrong == "", f"{what}: {outcome}"


def test_cases_follow_from_their_seeds():
    def drawn(case):
        return damage.Damage.drawn(random.Random(f"damage/{case}"))

    damages = [drawn(case) for case in range(50)]
    assert damages == [drawn(case) for case in range(50)]
    assert {each.flipped for each in damages} == {0, 1, 2}
    assert {each.cut for each in damages} == {True, False}
    assert {each.state for each in damages} == {
        "",
        "version removed",
        "version altered",
        "all removed",
    }
    assert any(each == (2, False, "") for each in damages)
