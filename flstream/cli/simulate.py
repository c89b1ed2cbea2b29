"""``flstream simulate``: run a job."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flstream.cli.options import (
    DONE,
    FAILED,
    STOPPED,
    AsJson,
    Clients,
    Engine,
    JobPath,
    Overrides,
    Quiet,
    Rounds,
    engine_settings,
)
from flstream.telemetry import MEMORY_GROUP

if TYPE_CHECKING:
    from flstream.recipe.sim_env import CommandLine

# Most characters of a job file; a longer one is refused.
_MOST_READ = 1 << 20


def simulate(
    job: JobPath,
    overrides: Overrides = None,
    clients: Clients = None,
    rounds: Rounds = None,
    run_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder for what the run leaves behind: new, or empty; with --resume, the run.",
            show_default="runs/<job>-<time>",
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Go on with a run where it was cut off: the one in --run-dir, or the "
            "newest runs/<job>-<time>. A run that was not begun is started.",
        ),
    ] = False,
    from_round: Annotated[
        int | None,
        typer.Option(
            metavar="K",
            help="With --resume, go back to the end of round K, and do again what came after it.",
        ),
    ] = None,
    engine: Engine = None,
    pdb: Annotated[
        bool,
        typer.Option(
            "--pdb",
            help="With --engine inline, open pdb where training code or a workflow raises an "
            "exception. The same as --set engine.pdb=true.",
        ),
    ] = False,
    as_json: AsJson = False,
    memory_limit: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Limit of the memory of all processes together, such as 2GiB; the same as "
            "--set memory_limit=SIZE. A resumed run may have another.",
        ),
    ] = None,
    quiet: Quiet = False,
    program_words: Annotated[
        list[str] | None,
        typer.Argument(metavar="WORDS", help="After --: arguments of a Python program's own."),
    ] = None,
) -> None:
    """Run a job: a server, and a process for each client, on this machine or on several.

    While it runs you see each site, its transfers and its memory; at the end, what every round
    brought and what it cost. The run directory keeps the models, the events, summary.json and
    report.html, a page about the run.

    JOB may be a folder with a Flower app, or a Python program of NVFlare's recipes: both run
    unchanged. An app's settings are --set app.config.KEY=VALUE. A program's own arguments come
    after --, and the options count for each run that it starts.

    A run that was stopped, killed or failed goes on with --resume, and a finished one too if
    the job has more rounds now. The job must be the same in all else.
    """
    from flstream.cli.output import diverted, spare_output
    from flstream.engines.processes import ProcessHost, variables_of

    spare_output()  # the exit status is the run's, which summary.json tells of as well

    if from_round is not None and not resume:
        raise typer.BadParameter("it goes with --resume", param_hint="--from-round")
    settings = {
        **engine_settings(engine),
        "clients.count": clients,
        "rounds": rounds,
        "engine.pdb": pdb or None,
        "memory_limit": memory_limit,
    }
    if job.suffix == ".py":
        from flstream.job.load import settings_of
        from flstream.recipe.sim_env import CommandLine

        own = {key: value for key, value in settings.items() if value is not None}
        own = {**settings_of(overrides or ()), **own}
        line = CommandLine(own, run_dir, resume, from_round, as_json or quiet, as_json)
        raise typer.Exit(simulate_program(job, program_words or (), line))
    if program_words:
        raise typer.BadParameter("only a Python program has arguments of its own", param_hint="--")
    try:
        with _memory_group() as is_in_group, closing(ProcessHost.of()) as host:
            # The fork server's imports take longest, so this process does its own meanwhile.
            text, path = "", job / "job.conf" if os.path.isdir(job) else job
            with suppress(OSError), path.open(errors="replace") as file:
                text = file.read(_MOST_READ)
            words = " ".join([engine or "", *(overrides or ()), text])
            is_limited = memory_limit is not None or "memory_limit" in words
            # With inline it may be that no process is needed; and with a limit, in the group alone.
            if "inline" not in words and (is_in_group or not is_limited):
                host.begin()
            from flstream.compat import load_path

            loaded, kind = load_path(job, overrides or (), settings)
            if loaded.memory_limit is not None and not is_in_group:
                from flstream.telemetry.memory_limit import restart

                host.close()  # it has begun where the limit is in a file that the job includes
                restart(loaded.memory_limit)
            host.prepare(variables_of(loaded))
            from flstream.report.console import make_console, report_error
            from flstream.report.running import run_and_show
            from flstream.runs.run_directory import RunDirectory

            run = (RunDirectory.reopen if resume else RunDirectory.create)(loaded.name, run_dir)
            with ExitStack() as stack:
                output = None
                if loaded.tracking.type is not None and not loaded.engine.is_inline:
                    # The tracker is a thread of this process, and may print what it likes.
                    output = stack.enter_context(diverted(run.log("tracker")))
                console = make_console(file=output)
                console.quiet = as_json or quiet
                if kind:
                    console.print(kind, highlight=False)
                summary = run_and_show(
                    loaded, run, console, resume=resume, from_round=from_round, host=host
                )
    except KeyboardInterrupt:
        # A run under way handles it: this was before or after.
        typer.echo("stopped; a run that had begun goes on with --resume", err=True)
        raise typer.Exit(STOPPED) from None
    if as_json:
        console.quiet = False
        console.out(summary.to_json(), highlight=False)
    if summary.status == "failed":
        report_error(f"{summary.error}\n  in the run directory {run.path}")
    raise typer.Exit({"finished": DONE, "stopped": STOPPED}.get(summary.status, FAILED))


def simulate_program(path: Path, words: Sequence[str], line: CommandLine) -> int:
    """Run a program, and return the exit status that its runs call for."""
    from flstream.compat.nvflare.program import run_program
    from flstream.report.console import report_error

    try:
        run_program(path, words, line)
    except KeyboardInterrupt:
        typer.echo("stopped; a run that had begun goes on with --resume", err=True)
        return STOPPED
    finally:
        if line.as_json and line.summaries:
            sys.stdout.write(f"{line.summaries[-1].to_json()}\n")
    failed = [summary for summary in line.summaries if summary.status != "finished"]
    for summary in failed:
        report_error(str(summary.error))
    return FAILED if failed else DONE


@contextmanager
def _memory_group() -> Iterator[bool]:
    """Yield whether this process has begun anew in a group with a limit, which the end removes."""
    if MEMORY_GROUP not in os.environ:
        yield False
        return
    from flstream.cli.run import interrupt
    from flstream.telemetry.memory_limit import restarted

    for number in (signal.SIGTERM, signal.SIGHUP):  # they would end this process before that
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, interrupt)
    with restarted() as is_in_group:
        yield is_in_group
