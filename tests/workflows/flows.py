"""Workflows that a test writes into a file beside its job, and what they have seen."""

import signal
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from training_scripts import noisy

from flstream.telemetry.events import EffectDone, decode_event
from flstream.telemetry.exact import decode_exact

# What every file begins with. A program runs in the server's process, so it notes in a file what a
# test is to know of it, and is told in a file where it is to die.
_PRELUDE = '''
import os
import signal
from pathlib import Path

HERE = Path(__file__).parent


def see(*values):
    """Note values for the test."""
    with (HERE / "seen.txt").open("a") as file:
        print(*map(repr, values), sep=", ", file=file)


def die_here(place="here", everything=False):
    """Kill the server, or every process of the run, if this is where the test wants that, once."""
    mark = HERE / "die-at"
    if mark.exists() and mark.read_text() == place:
        mark.unlink()
        if everything:
            import psutil

            # The launcher started the fork server, and that all others, in a group of its own.
            psutil.Process().parent().parent().kill()
            os.killpg(0, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


def run_folder():
    """The folder of the run."""
    return max(HERE.glob("run-*"), key=lambda each: int(each.name.removeprefix("run-")))


def waiting():
    """The updates that wait in files."""
    folder = run_folder() / "updates"
    return sorted(str(each.relative_to(folder)) for each in folder.rglob("site-*.safetensors"))


'''


class Flows(NamedTuple):
    """Runs of a workflow ``flow`` that the test wrote."""

    jobs: object

    def write(self, text: str) -> str:
        """Write the file of the workflow, and return the override that names it."""
        (self.jobs.folder / "flow.py").write_text(_PRELUDE + textwrap.dedent(text))
        return 'workflow.type="flow.py:flow"'

    def run(self, text: str, *overrides: str, script: str | None = None, **how):
        """Run it, whatever comes of it."""
        kind = self.write(text)
        return self.jobs.run(script or noisy(), kind, *overrides, **how)

    def finish(self, text: str, *overrides: str, **how):
        """Run it to its end."""
        return finished(self.run(text, *overrides, **how))

    def fail(self, text: str, *overrides: str, **how) -> str:
        """Run it, and return the sentence with which it failed."""
        run = self.run(text, *overrides, **how)
        assert run.summary.status == "failed"
        return run.summary.error

    def killed(self, text: str, *overrides: str, place: str = "here", **how):
        """Run it until ``die_here`` of a place kills its server."""
        (self.jobs.folder / "die-at").write_text(place)
        run = self.run(text, *overrides, **how)
        assert "server was killed by SIGKILL" in run.summary.error, run.summary.error
        return run

    def killed_whole(self, text: str, *overrides: str, place: str, script: str) -> Path:
        """Run it on the command line until it kills all its processes; return its folder."""
        kind = self.write(text)
        job = self.jobs.make(script, kind, *overrides)
        (self.jobs.folder / "die-at").write_text(place)
        run = self.jobs.folder / "run-killed"
        words = [word for each in (kind, *overrides) for word in ("--set", each)]
        line = [sys.executable, "-m", "flstream", "simulate", job.folder, "--run-dir", run, *words]
        done = subprocess.run([*line, "--quiet"], capture_output=True, text=True, timeout=100)
        assert done.returncode == -signal.SIGKILL, done.stderr
        return run

    def resume(self, run, text: str, *overrides: str, script: str | None = None, **how):
        """Go on with a run, to its end."""
        kind = self.write(text)
        return finished(self.jobs.go_on(run, script or noisy(), kind, *overrides, **how))

    def seen(self) -> list[str]:
        """What the workflow has seen since this was asked last, a line each."""
        path = self.jobs.folder / "seen.txt"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return lines


def finished(run):
    """The run, which must have come to its end."""
    assert run.summary.status == "finished", run.summary.error
    return run


def lines(run) -> Sequence[object]:
    """All events in the journal, void ones among them; a last line may be cut off."""
    whole = run.directory.events.read_bytes().splitlines(keepends=True)
    return [decode_event(line) for line in whole if line.endswith(b"\n")]


def records(run) -> list[EffectDone]:
    """The records of effects, void ones among them."""
    return [event for event in lines(run) if isinstance(event, EffectDone)]


def shape(found: Sequence[EffectDone]) -> list[str]:
    """Number and kind of each record."""
    return [f"{each.effect} {each.name}" for each in found]


def result(record: EffectDone):
    """What a record says came of its effect."""
    return decode_exact(record.result)


def trainings(run, site: str) -> int:
    """How often a site of :func:`training_scripts.noisy` has trained."""
    path: Path = run.directory.site(site) / "trained.txt"
    return len(path.read_text().splitlines()) if path.exists() else 0


def models(run) -> list[str]:
    """Names of the models on disk."""
    return sorted(path.name for path in run.directory.checkpoints.glob("*.safetensors"))
