"""Workflows that a test writes into a file beside its job, and what they have seen."""

import textwrap
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from run_fixtures import Jobs
from training_scripts import noisy, of_kind

from flstream.telemetry.events import EffectDone

# The beginning of every file. A program notes in a file what the test is to know of it.
_PRELUDE = '''
from pathlib import Path

from flstream.workflows import FoldRule

HERE = Path(__file__).parent


def see(*values):
    """Note values for the test."""
    with (HERE / "seen.txt").open("a") as file:
        print(*map(repr, values), sep=", ", file=file)


def break_off(place="here"):
    """End the run, if this is where the test wants that; a resume goes on from the last record."""
    mark = HERE / "break-at"
    if mark.exists() and mark.read_text() == place:
        mark.unlink()
        raise SystemExit(f"broken off at {place}")


def refused(run, calls, **names):
    """Note the sentence with which each call fails; the run goes on as if there had been none."""
    for call in calls:
        try:
            eval(call, {**globals(), **names, "run": run})
        except BaseException as error:
            see(call, str(error), isinstance(error, Exception))
            run._state.failure = None


def run_folder():
    """The folder of the run."""
    return max(HERE.glob("run-*"), key=lambda folder: int(folder.name.removeprefix("run-")))


def on_disk():
    """The names of models, one each."""
    files = sorted(run_folder().glob("checkpoints/*.safetensors"), reverse=True)
    return sorted({file.stat().st_ino: file.stem for file in files}.values())


def waiting():
    """The updates that wait in files."""
    folder = run_folder() / "updates"
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("site-*.safetensors"))


'''
# What a text is put into that is no program, but what one does in each round.
_ROUNDS = """def flow(run):
    model = run.initial_model()
    for number in run.rounds():
{}
    return model
"""


class Flows(NamedTuple):
    """Runs of a workflow ``flow`` that the test wrote."""

    jobs: Jobs

    def write(self, text: str) -> str:
        """Write the file of the workflow, and return the override that names it.

        Args:
            text: The whole program, or what it does in each round.
        """
        text = textwrap.dedent(text)
        if "def " not in text:
            text = _ROUNDS.format(textwrap.indent(text, " " * 8))
        (self.jobs.folder / "flow.py").write_text(_PRELUDE + text)
        return 'workflow.type="flow.py:flow"'

    def run(self, text: str, *overrides: str, script: str | None = None, **how):
        """Run it, whatever comes of it."""
        kind = self.write(text)
        return self.jobs.run(script or noisy(), kind, *overrides, **how)

    def finish(self, text: str, *overrides: str, **how):
        """Run it to its end."""
        return self.run(text, *overrides, **how).finished()

    def fail(self, text: str, *overrides: str, **how) -> str:
        """Run it, and return the sentence with which it failed."""
        run = self.run(text, *overrides, **how)
        assert run.summary.status == "failed"
        return run.summary.error

    def broken(self, text: str, *overrides: str, place: str = "here", **how):
        """Run it until ``break_off`` of a place ends it."""
        (self.jobs.folder / "break-at").write_text(place)
        run = self.run(text, *overrides, **how)
        assert f"broken off at {place}" in run.summary.error, run.summary.error
        return run

    def resume(self, run, text: str, *overrides: str, script: str | None = None, **how):
        """Go on with a run, to its end."""
        kind = self.write(text)
        return self.jobs.go_on(run, script or noisy(), kind, *overrides, **how).finished()

    def sentences(self) -> dict[str, tuple[str, bool]]:
        """The sentence that ``refused`` has seen for each call, and whether it can be caught."""
        return {call: tuple(rest) for call, *rest in map(eval, self.seen())}

    def seen(self) -> list[str]:
        """Lines that the workflow has written since the last call."""
        path = self.jobs.folder / "seen.txt"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return lines


def records(run) -> list[EffectDone]:
    """The records of effects."""
    return of_kind(run, EffectDone)


def shape(records: Sequence[EffectDone]) -> list[str]:
    """Number and kind of each record."""
    return [f"{record.effect} {record.name}" for record in records]


def numbered(*kinds: str) -> list[str]:
    """The shape of records of these kinds, in this order."""
    return [f"{number} {kind}" for number, kind in enumerate(kinds, 1)]


def result(record: EffectDone):
    """Result of an effect, from its record."""
    return msgspec.json.decode(record.result)


def models(run) -> list[str]:
    """Names of the models on disk, one each: that of its round for the last of a round."""
    files = sorted(run.directory.checkpoints.glob("*.safetensors"), reverse=True)
    return sorted({file.stat().st_ino: file.stem for file in files}.values())
