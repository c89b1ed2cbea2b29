"""Damage runs that were killed, resume them, and check that no bit changes silently.

A case kills a run of a script that keeps state, at a point that a seed decides, and then damages
it: a byte is flipped in the newest one or two checkpoints, the journal is cut to half, a version of
a site's state is removed or altered, or all of its state removed; often several of these. Then
``--resume`` has to end in the bits of an undisturbed run, or with exit status 2 and one sentence,
and with every file left as it was. Where all is there that the resume needs, it has to resume: a
site's last three states are kept, so all is there unless more trainings than that are void.

    python benchmarks/damage.py [--cases 50] [--first 0]

Takes about five minutes on two quiet cores.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from kills import Reference, Scenario, rounds_of
from run_files import KeptRun, changes, files_of, flip
from simulating import Outcome, StartedRun, simulate

ROUNDS = 10
# Three of four sites a round: not all states are of the same training.
SCENARIO = Scenario(
    (f"rounds={ROUNDS}", "clients.per_round=3", "model.args.elements=5000"), ("all",)
)
# Seconds at most between the end of a round and the kill: about as long as the next one takes.
MOST_DELAY = 0.06
# Files that no run makes: they have to outlive whatever a resume clears away.
FOREIGN = ("notes.txt", "checkpoints/notes.txt", "sites/site-1/state/notes.txt")


class Damage(NamedTuple):
    """Damage to a run directory.

    Attributes:
        flipped: Number of newest checkpoints that get a wrong byte.
        cut: Whether the journal loses its second half.
        state: Damage to a site's state: none (empty), ``version removed``,
            ``version altered`` or ``all removed``.
    """

    flipped: int
    cut: bool
    state: str

    @classmethod
    def drawn(cls, chance: random.Random) -> Damage:
        """Draw a damage, to checkpoints most often."""
        flipped = chance.choice((0, 1, 2, 2))
        cut = chance.random() < 0.3
        kinds = ("", "", "", "version removed", "version altered", "all removed")
        state = chance.choice(kinds)
        return cls(flipped, cut, state) if flipped or cut or state else cls(2, False, "")

    @property
    def text(self) -> str:
        """Description of the damage."""
        parts = [f"{self.flipped} flipped"] if self.flipped else []
        parts += ["journal cut"] if self.cut else []
        parts += [f"state: {self.state}"] if self.state else []
        return ", ".join(parts)


def kill_in_mid_run(run: Path, chance: random.Random, settings: tuple[str, ...]) -> None:
    """Run the job until some round, and kill all its processes."""
    last = chance.randint(1, ROUNDS - 1)
    delay = chance.uniform(0, MOST_DELAY)
    scenario = SCENARIO._replace(settings=(*SCENARIO.settings, *settings))
    with StartedRun(scenario.command(run), run) as started:
        journal = run / "events.jsonl"
        if started.wait_until(lambda: rounds_of(journal) >= last):
            started.wait_at_most(delay)
        started.kill("all", min)


def inflict(damage: Damage, kept: KeptRun, chance: random.Random) -> set[tuple[str, int]]:
    """Damage a run.

    Returns:
        The states that are damaged, as site and round of the training that left it.
    """
    newest = sorted(kept.checkpoints, reverse=True)[: damage.flipped]
    for number in newest:
        flip(kept.checkpoints.pop(number), chance)
    if damage.cut:
        journal = kept.path / "events.jsonl"
        content = journal.read_bytes()
        journal.write_bytes(content[: len(content) // 2])
    sites = sorted({site for site, _ in kept.states})
    if not damage.state or not sites:
        return set()
    site = chance.choice(sites)
    versions = sorted(number for owner, number in kept.states if owner == site)
    if damage.state == "all removed":
        shutil.rmtree(kept.path / "sites" / site / "state")
        return {(site, number) for number in range(ROUNDS + 1)}
    number = chance.choice(versions)
    folder = kept.states[site, number]
    if damage.state == "version removed":
        shutil.rmtree(folder)
    else:
        file = folder / "momentum.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "momentum": 7.5}))
    return {(site, number)}


def missing(kept: KeptRun, gone: set[tuple[str, int]]) -> str:
    """Return what a resume of a damaged run lacks; empty if nothing, so that it has to resume.

    Args:
        kept: Content of the run directory before the damage, without the models that were flipped.
        gone: Site and round of the states that were damaged.
    """
    sound = [number for number in kept.recorded_rounds() if number in kept.checkpoints]
    if not sound:
        return "a model"
    for site, trained in kept.trainings.items():
        before = [number for number in trained if number <= max(sound)]
        if not before:
            continue
        needed = before[-1]
        later = len(trained) - len(before)
        if (site, needed) in gone:
            return f"the state of {site} after round {needed}, which was damaged"
        if later > 2 and (site, needed) not in kept.states:
            return f"the state of {site} after round {needed}, {later} trainings ago"
    return ""


def verdict(
    reference: Reference, done: Outcome, lacks: str, changed: list[str], foreign: list[str]
) -> str:
    """Return what is wrong with a resume; empty if nothing is.

    Args:
        reference: Undisturbed run.
        done: Outcome of the resume.
        lacks: Description of what it lacked.
        changed: Files that it removed or altered.
        foreign: Files among them that no run makes.
    """
    if foreign:
        return f"removed or altered {', '.join(foreign)}, which no run made"
    if done.status == 0:
        different = reference.differences(done.summary)
        return f"resumed to another {', '.join(different)}" if different else ""
    sentence = done.errors.strip()
    if done.status != 2:
        return f"exit status {done.status}: {sentence}"
    if "Traceback" in sentence or not sentence.startswith("error: ") or "\n" in sentence:
        return f"no single sentence: {sentence}"
    if changed:
        return f"refused, but removed or altered {', '.join(changed)}"
    return "" if lacks else f"refused, though nothing was missing: {sentence}"


def damaged(reference: Reference, folder: Path, number: int) -> tuple[str, str, str]:
    """Run a case: return its description, ``resumed`` or ``refused``, and what is wrong."""
    chance = random.Random(f"damage/{number}")
    damage = Damage.drawn(chance)
    run = folder / f"run-{number}"
    keep = chance.choice(("all", "3"))
    settings = (f"checkpoints.keep={keep}", f"clients.parallel={chance.choice((2, 4))}")
    kill_in_mid_run(run, chance, settings)
    kept = KeptRun.of(run)
    gone = inflict(damage, kept, chance)
    for name in FOREIGN:
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text("not of the run\n")
    lacks = missing(kept, gone)
    before = files_of(run)
    scenario = SCENARIO._replace(settings=(*SCENARIO.settings, *settings))
    done = simulate(scenario.command(run, "--resume"))
    changed = changes(before, files_of(run))
    wrong = verdict(reference, done, lacks, changed, [each for each in changed if each in FOREIGN])
    shutil.rmtree(run)
    what = f"killed after round {max(kept.finished)}, keep={keep}, {damage.text}"
    what += f"; lacks {lacks}" if lacks else "; lacks nothing"
    return what, "refused" if done.status else "resumed", wrong


def main(options: argparse.Namespace) -> int:
    """Run all cases, print the tally, and return the exit status."""
    tally: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="flstream-damage-") as name:
        folder = Path(name)
        reference = Reference.of(SCENARIO, folder)
        for number in range(options.first, options.first + options.cases):
            what, outcome, wrong = damaged(reference, folder, number)
            print(f"{number}: {what}: {outcome}{', WRONG: ' * bool(wrong)}{wrong}", flush=True)
            tally["wrong" if wrong else outcome] += 1
    print(f"{tally['resumed']} resumed to the same bits, {tally['refused']} refused rightly")
    print(f"{options.cases - tally['wrong']} of {options.cases} as they have to be")
    return int(tally["wrong"] > 0)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(description="Damage runs, and resume them.")
    made.add_argument("--cases", type=int, default=50, help="how many")
    made.add_argument("--first", type=int, default=0, help="number of the first case: its seed")
    return made


if __name__ == "__main__":
    sys.exit(main(parser().parse_args()))
