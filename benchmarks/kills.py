"""Kill processes of a run at random instants, resume it, and compare the bits.

A case runs a job, kills a client's process, a worker that does the work of several sites, the
server, or everything, at instants that a seed decides, and goes on with ``--resume`` until the run
is finished. The final model and the metrics have to be those of an undisturbed run.

    python benchmarks/kills.py [--scenario fedavg]... [--cases N] [--first 0]
    python benchmarks/kills.py --job JOB [--set KEY=VALUE]... [--victim all]... [--kills 1]

Without arguments all scenarios are run, one after another: about ten minutes.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from simulating import JOBS, StartedRun, command, lines_of, records, simulate

SMALL_JOB = Path(__file__).parent / "small_job" / "job.conf"
PERSONAL_JOB = Path(__file__).parent / "personal_job" / "job.conf"
VICTIMS = ("client", "worker", "server", "all")
# Where a workflow goes on without a site that is lost, the bits are others, and rightly so.
WHOLE_RUN = ("server", "all")
# This share of the kills hits the start-up; the others hit the run when its journal has grown to
# a random number of lines, and up to so many seconds later.
STARTUP_SHARE, MOST_DELAY = 0.2, 0.02
# Of what is left of a run, such that it is still under way.
LATEST = 0.95
MOST_RESUMES = 5


class Scenario(NamedTuple):
    """A job whose runs are killed.

    Attributes:
        settings: Overrides of the job, as ``key=value``.
        victims: Processes to kill, in turn: ``client``, ``worker``, ``server`` or ``all``.
        cases: Number of runs, unless the command line has one.
        kills: Number of kills of each run.
        job: Path of the job file.
    """

    settings: tuple[str, ...] = ()
    victims: tuple[str, ...] = VICTIMS
    cases: int = 8
    kills: int = 1
    job: Path = SMALL_JOB

    def command(self, run: Path, *more: str, shared: bool = False) -> list[str]:
        """Return the command line of a run, with two shared workers if ``shared``."""
        workers = ("clients.parallel=2",) if shared else ()
        return command(self.job, run, (*self.settings, *workers), *more)


ODD_EVEN = 'workflow.type="odd_even.py:odd_even"'
UNSEEDED = ("rounds=8", "clients.count=20", "clients.parallel=2", "model.args.elements=1000")
SCENARIOS = {
    "fedavg": Scenario(cases=50),
    "cyclic": Scenario(("workflow.type=cyclic", "rounds=8"), WHOLE_RUN),
    "fedper": Scenario(('workflow={type=fedper, args{personal=["^head"]}}',), job=PERSONAL_JOB),
    "ditto": Scenario(("workflow.type=ditto",), job=PERSONAL_JOB),
    "feddyn": Scenario(("workflow.type=feddyn",), job=PERSONAL_JOB),
    "optimizer": Scenario(
        ("train.optimizer_state=global", "train.optimizer_moments=[momentum_buffer]"),
        job=PERSONAL_JOB,
    ),
    "krum": Scenario(("aggregation.method=multi_krum",)),
    "private": Scenario(
        ("privacy={type=central, noise_multiplier=0.1, clipping={type=adaptive, norm=1}}",)
    ),
    "exchange": Scenario(
        ("workflow.type=cyclic", "rounds=8", "clients.count=4", "model.args.size=1MiB"),
        WHOLE_RUN,
        job=JOBS / "exchange" / "job.conf",
    ),
    "scaffold": Scenario(
        ("rounds=5", "clients.count=3", "train.args.epochs=1"),
        WHOLE_RUN,
        cases=10,
        job=JOBS / "scaffold" / "job.conf",
    ),
    "cross_site": Scenario(
        ("workflow={type=cross_site,args{after=fedavg}}", "rounds=4"), WHOLE_RUN, cases=10
    ),
    "evaluate": Scenario(("workflow.type=evaluate", "clients.count=12"), WHOLE_RUN, cases=10),
    "swarm": Scenario(("workflow.type=swarm", "rounds=10"), cases=10),
    "odd_even": Scenario((ODD_EVEN, "rounds=12"), cases=8),
    "odd_even_20": Scenario(
        # Rounds that take a while, as it does to find the processes of a run.
        (ODD_EVEN, "rounds=100", "model.args.elements=2000000"),
        WHOLE_RUN,
        cases=1,
        kills=20,
    ),
    "unseeded": Scenario(('workflow.type="unseeded.py:unseeded"', *UNSEEDED), ("all",), cases=2),
}


class Reference(NamedTuple):
    """An undisturbed run.

    Attributes:
        summary: Content of its ``summary.json``.
        lines: Number of lines of its journal.
        effects: Number of effects of its workflow.
        startup: Time from the command to the first round, or effect, in seconds.
        startup_lines: Number of lines of its journal until then.
        scores: What its sites have found of each other's models; empty where nobody asked.
    """

    summary: dict[str, Any]
    lines: int
    effects: int
    startup: float
    startup_lines: int
    scores: str

    @classmethod
    def of(cls, scenario: Scenario, folder: Path) -> Reference:
        """Run a scenario without disturbing it.

        Raises:
            SystemExit: it failed.
        """
        run, began = folder / "undisturbed", time.time()
        status, summary, errors = simulate(scenario.command(run))
        if status:
            raise SystemExit(f"an undisturbed run ends with exit status {status}: {errors}")
        journal = records(run / "events.jsonl")
        effects = effects_of(run / "events.jsonl")
        begins = ("round_started", "effect")  # an evaluation alone has no rounds
        first = next(n for n, event in enumerate(journal) if event["kind"] in begins)
        scores = scores_of(run)
        shutil.rmtree(run)
        return cls(summary, len(journal), effects, journal[first]["time"] - began, first, scores)

    def differences(self, summary: dict[str, Any], scores: str = "") -> list[str]:
        """Return the keys whose values in another run's summary should be as here and are not."""
        keys = ("metrics", "best", "rounds_completed", "status")
        found = [key for key in keys if summary.get(key) != self.summary[key]]
        found += ["cross_val_results.json"] if scores != self.scores else []
        same = summary.get("model", {}).get("digest") == self.summary["model"]["digest"]
        return found if same else ["digest", *found]


class Case(NamedTuple):
    """What decides the instants of a case: an undisturbed run, and a seeded generator."""

    reference: Reference
    chance: random.Random


class Result(NamedTuple):
    """Result of a case.

    Attributes:
        killed: Processes killed and when, in words.
        verdict: Description of what is wrong; empty if nothing is.
    """

    killed: str
    verdict: str


def disturb(line: Sequence[str], run: Path, victim: str, left: int, case: Case) -> str | None:
    """Start or resume a run, and kill it before it is finished.

    Args:
        line: The command.
        run: Its run directory.
        victim: Processes to kill: ``client``, ``worker``, ``server`` or ``all``.
        left: Number of kills of this run that are still to come, with this one.
        case: Undisturbed run and generator, which decide the instant.

    Returns:
        Processes killed and when, in words; None if the run was finished before.
    """
    reference, chance = case
    journal = run / "events.jsonl"
    share, position, delay = chance.random(), chance.random(), chance.uniform(0, MOST_DELAY)
    done = effects_of(journal) / reference.effects
    # Such that the kills are spread over what is left of the run.
    span = 2 * reference.lines * (1 - done) / (left + 1)
    begun = lines_of(journal)
    lines = begun + 1 + int(position * LATEST * span)
    with StartedRun(line, run) as started:
        if share < STARTUP_SHARE:
            until = time.monotonic() + share / STARTUP_SHARE * reference.startup
            # The machine may have been busy when the other run was timed, and not be so now.
            most = begun + reference.startup_lines
            started.wait_until(lambda: time.monotonic() >= until or lines_of(journal) > most)
        elif started.wait_for_lines(lines):
            started.wait_at_most(delay)
        was_running = started.kill(victim, chance.choice)
    return f"{victim} in round {rounds_of(journal) + 1}" if was_running else None


def rounds_of(journal: Path) -> int:
    """Return the last round that is finished according to a journal; 0 without one."""
    finished = (each["round"] for each in records(journal) if each["kind"] == "round_finished")
    return max(finished, default=0)


def effects_of(journal: Path) -> int:
    """Return the number of the last effect that counts according to a journal; 0 without one."""
    last = 0
    for each in records(journal):
        if each["kind"] in ("effect", "run_resumed"):
            last = each["effect"] or 0
    return last


def disturbed(scenario: Scenario, reference: Reference, folder: Path, number: int) -> Result:
    """Kill a run as often as the scenario says, resume it each time, and compare."""
    case = Case(reference, random.Random(f"kill/{number}"))
    run = folder / f"run-{number}"
    victim = scenario.victims[number % len(scenario.victims)]
    shared = victim == "worker"
    other = {"client"} if shared else {"worker"}
    killed: list[str] = []
    for left in range(scenario.kills, 0, -1):
        if killed:
            victim = case.chance.choice([each for each in scenario.victims if each not in other])
        line = scenario.command(run, *["--resume"] * bool(killed), shared=shared)
        when = disturb(line, run, victim, left, case)
        if when is None:
            break
        killed.append(when)
    verdict = finish(scenario.command(run, "--resume", shared=shared), run, reference)
    if not verdict and 1 < scenario.kills > len(killed):
        verdict = f"finished after {len(killed)} of {scenario.kills} kills: give it more rounds"
    shutil.rmtree(run)
    return Result(", ".join(killed) or "nothing, as it was finished", verdict)


def scores_of(run: Path) -> str:
    """Return what the sites of a run have found of each other's models; empty without that."""
    path = run / "cross_site" / "cross_val_results.json"
    return path.read_text() if path.exists() else ""


def finish(line: Sequence[str], run: Path, reference: Reference) -> str:
    """Resume a run until it is finished, and return what is wrong with it; empty if nothing is."""
    for _ in range(MOST_RESUMES):
        status, summary, errors = simulate(line)
        if status == 0:
            return ", ".join(reference.differences(summary, scores_of(run)))
    return f"does not finish, exit status {status}: {errors.strip()}"


def mismatched(scenario: Scenario, folder: Path, number: int) -> Result:
    """Kill a run of a non-deterministic workflow once its round 2 is durable, and resume it."""
    run = folder / f"run-{number}"
    journal = run / "events.jsonl"
    delay = random.Random(f"kill/{number}").uniform(0, MOST_DELAY)
    with StartedRun(scenario.command(run), run) as started:
        if not started.wait_until(lambda: rounds_of(journal) >= 2):
            return Result("nothing", "ended before round 2 was durable")
        started.wait_at_most(delay)
        started.kill("all", min)
    killed = f"all in round {rounds_of(journal) + 1}"
    requests = [each["request"] for each in records(journal) if each["kind"] == "effect"]
    status, _, errors = simulate(scenario.command(run, "--resume"))
    shutil.rmtree(run)
    if status not in (1, 2) or "Traceback" in errors:
        return Result(killed, f"exit status {status} and no sentence: {errors.strip()}")
    # What the journal has, and what the program asked for now: both train, but other sites.
    names_both = any(request in errors for request in requests) and errors.count("train") >= 2
    return Result(killed, "" if names_both else f"does not name both effects: {errors.strip()}")


def run_cases(name: str, scenario: Scenario, cases: range, folder: Path) -> Counter[str]:
    """Run the cases of a scenario, print each, and count those that end ``well`` and ``wrong``."""
    tally: Counter[str] = Counter()
    # A program that is not deterministic has no undisturbed run to compare with.
    reference = None if name == "unseeded" else Reference.of(scenario, folder)
    for case in cases:
        if reference is None:
            result = mismatched(scenario, folder, case)
        else:
            result = disturbed(scenario, reference, folder, case)
        outcome = f"WRONG: {result.verdict}" if result.verdict else "as it has to be"
        print(f"{name} {case}: killed {result.killed}: {outcome}", flush=True)
        tally["wrong" if result.verdict else "well"] += 1
    return tally


def main(options: argparse.Namespace) -> int:
    """Run all cases, print the tally, and return the exit status."""
    chosen = {name: SCENARIOS[name] for name in options.scenario or SCENARIOS}
    if options.job is not None:
        victims = tuple(options.victim or WHOLE_RUN)
        job = options.job.resolve()
        chosen = {job.stem: Scenario(tuple(options.set), victims, kills=options.kills, job=job)}
    tallies: dict[str, Counter[str]] = {}
    with tempfile.TemporaryDirectory(prefix="flstream-kills-") as folder:
        for name, scenario in chosen.items():
            cases = range(options.first, options.first + (options.cases or scenario.cases))
            tallies[name] = run_cases(name, scenario, cases, Path(folder))
    for name, tally in tallies.items():
        print(f"{name}: {tally['well']} of {tally.total()} as they have to be")
    return int(any(tally["wrong"] for tally in tallies.values()))


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(description="Kill and resume.")
    made.add_argument("--scenario", action="append", choices=SCENARIOS, help="only this one")
    made.add_argument("--cases", type=int, help="runs of each scenario")
    made.add_argument("--first", type=int, default=0, help="number of the first case: its seed")
    made.add_argument("--job", type=Path, help="a job file to run instead")
    made.add_argument("--set", metavar="KEY=VALUE", action="append", default=[], help="of that job")
    made.add_argument("--victim", action="append", choices=VICTIMS, help="what is killed of it")
    made.add_argument("--kills", type=int, default=1, help="how often each run of it is killed")
    return made


if __name__ == "__main__":
    sys.exit(main(parser().parse_args()))
