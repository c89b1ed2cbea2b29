"""``flstream sweep``: run a grid of settings and seeds."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

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
from flstream.errors import UsageError


def sweep(
    job: JobPath,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            "--vary",
            metavar="KEY=A,B",
            help="A key of the job file with values to try. May be repeated: all combinations run.",
        ),
    ] = None,
    variants: Annotated[
        list[str] | None,
        typer.Option(
            "--variant",
            metavar="KEY=A,KEY=B",
            help="Settings that belong together, such as workflow.type=scaffold,train.args.lr=0.1. "
            "May be repeated: each runs with all values of --vary. '' is the job as it is.",
        ),
    ] = None,
    seeds: Annotated[
        int, typer.Option(metavar="N", help="Runs of each setting: the job's seed, +1, +2, ...")
    ] = 1,
    parallel: Annotated[int, typer.Option(metavar="P", help="Number of runs at a time.")] = 1,
    prune: Annotated[
        bool,
        typer.Option(
            "--prune",
            help="Successive halving: all settings run for a part of the rounds, the better half "
            "of them for twice as many, and so on. total_rounds is that part's in training code.",
        ),
    ] = False,
    overrides: Overrides = None,
    clients: Clients = None,
    rounds: Rounds = None,
    run_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder of the sweep, with a folder for each run; one that was cut off resumes.",
            show_default="runs/<job>-sweep",
        ),
    ] = None,
    engine: Engine = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Run a job with each combination of settings and seeds, and compare the results.

    All runs share one process that has imported torch, so each begins at once. The folder has
    sweep.json, table.csv and table.json (mean and spread of each setting), report.html, and a run
    directory for each run.

    The same command again goes on where it was cut off, and tries failed runs again. With more
    values or fewer, it runs what is missing.
    """
    import shlex
    import sys

    from flstream.job import Job, load_job
    from flstream.report.console import make_console, print_tables, report_error
    from flstream.report.text import counted, shown_path
    from flstream.sweep.grid import Point, keys_of, parse_axis, parse_variant
    from flstream.sweep.record import PointRecord
    from flstream.sweep.results import (
        best_line,
        best_of_each,
        point_line,
        sweep_table,
        table_json,
        write_results,
    )
    from flstream.sweep.running import Sweep, SweepProgress
    from flstream.text import brief_names

    if min(seeds, parallel) < 1:
        option, number = ("--seeds", seeds) if seeds < 1 else ("--parallel", parallel)
        raise UsageError(f"{option} {number}: give at least 1")
    axes = dict[str, list[str]]()
    for text in vary or ():
        key, values = parse_axis(text)
        if key in axes:
            raise UsageError(f"--vary {text}: {key} is varied twice; give all its values at once")
        axes[key] = values
    pairs = [parse_variant(text) for text in variants or ()]
    options = {"clients.count": clients, "rounds": rounds}
    fixed = [*(overrides or ()), *(f"{key}={it}" for key, it in options.items() if it is not None)]
    varied_keys = keys_of(pairs, axes)
    for setting in fixed:
        if (key := setting.partition("=")[0].strip()) in varied_keys:
            raise UsageError(f"{key}: it is varied, and set to one value; leave one out")

    def job_of(point: Point) -> Job:
        varied = [f"{key}={value}" for key, value in point.values.items()]
        settings = {**engine_settings(engine), "seed": point.seed}
        return load_job(job, [*fixed, *varied], settings)

    command = shlex.join(["flstream", *sys.argv[1:]])
    whole = Sweep(run_dir, job_of, axes, seeds, variants=pairs, prune=prune, command=command)
    console = make_console()
    console.quiet = as_json or quiet
    count = len(whole.record.points)
    console.out(f"{counted(count, 'run')} in {whole.folder}")
    for note in whole.notes:
        console.out(f"note: {note}")

    record, width = whole.record, len(str(count))
    with nullcontext() if console.quiet else console.status("starting") as status:

        def tell(progress: SweepProgress) -> None:
            if (ended := progress.ended) is not None:
                place = f"{progress.done:>{width}}/{progress.total:<{width}}"
                console.out(f"{place} {point_line(record, ended)}")
            if status is not None:
                status.update(f"running {brief_names(progress.running)}")

        was_stopped = whole.run(parallel, tell)
    page = write_results(whole.folder, record)
    print_tables(console, sweep_table(record))
    for line in filter(None, [best_line(record), *best_of_each(record)]):
        console.out(line)
    if page is not None:
        console.print()
        console.print(f"report  {shown_path(page)}", soft_wrap=True, highlight=False)
    if as_json:
        console.quiet = False
        console.out(table_json(record), highlight=False)
    failed: dict[str, list[PointRecord]] = {}
    warned: dict[str, list[str]] = {}
    for point in record.points:
        for warning in point.warnings:
            warned.setdefault(warning, []).append(point.name)
        if point.status == "failed":
            failed.setdefault(point.error, []).append(point)
    for warning, names_warned in warned.items():
        typer.echo(f"warning: {brief_names(names_warned)}: {warning}", err=True)
    for error, points in failed.items():
        names = brief_names([point.name for point in points])
        report_error(f"{names}: {error}\n  in {whole.directory(points[0]).path}")
    if failed:
        typer.echo("mend that; the same command then tries the failed runs again", err=True)
    elif was_stopped:
        typer.echo(f"the same command goes on with the sweep: {command}", err=True)
    raise typer.Exit(STOPPED if was_stopped else FAILED if failed else DONE)
