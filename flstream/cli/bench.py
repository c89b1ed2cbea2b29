"""``flstream bench``: measure transfer modes, or codecs, side by side on this machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flstream.cli.bench_plans import MODES, ExchangeOptions, codec_plan, mode_plan
from flstream.cli.status import FAILED, STOPPED
from flstream.errors import AbortedError, UsageError

if TYPE_CHECKING:
    from flstream.bench.codec_plan import CodecBenchPlan
    from flstream.bench.plan import Plan
    from flstream.bench.schedule import Watcher
    from flstream.report.bench.outputs import BenchFound


def bench(
    model_size: Annotated[
        str, typer.Option(help="Size of the model, such as 256MiB or 5GB.", metavar="SIZE")
    ],
    clients: Annotated[int, typer.Option(help="Number of clients.", min=1, max=64)] = 2,
    modes: Annotated[
        str | None,
        typer.Option(help="Modes to compare, with commas.", metavar="MODES", show_default=MODES),
    ] = None,
    network: Annotated[
        str | None,
        typer.Option(
            help="Emulate a link for each client: rate and latency, such as 10Mbit,50ms, or "
            "10Mbit/100Mbit,50ms,5ms,1% with the rates up and down, jitter and loss.",
            metavar="LINK",
        ),
    ] = None,
    codecs: Annotated[
        str | None,
        typer.Option(
            help="Compare codecs instead of modes: all, or a list such as "
            "cast,int8,topk:0.05,shuffle+zstd.",
            metavar="LIST",
        ),
    ] = None,
    whole: Annotated[
        bool,
        typer.Option(
            "--whole",
            help="With --codecs, send the whole model, and not only what a link takes 20 s for.",
        ),
    ] = False,
    chunk_size: Annotated[
        str,
        typer.Option(
            help="Longest frame, a multiple of 16 bytes; several with commas.", metavar="SIZES"
        ),
    ] = "2MiB",
    tensors: Annotated[
        int | None,
        typer.Option(help="Number of tensors, all of one size.", min=1, show_default="a mix"),
    ] = None,
    repeat: Annotated[
        int | None,
        typer.Option(
            help="Runs of each case; medians count.",
            min=1,
            show_default="3, or 1 beyond 10 GB, over a link, and of codecs",
        ),
    ] = None,
    json: Annotated[
        str | None,
        typer.Option(help="Write the figures to this file as JSON; - is stdout.", metavar="FILE"),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            help="Draw memory over time into this file: .png, .svg or .pdf.", metavar="FILE"
        ),
    ] = None,
) -> None:
    """Measure the transfer modes, or codecs, side by side.

    Runs FedAvg's exchange of a model, without training, between a server and clients in processes
    of their own: each mode at each chunk size in turn, as often as --repeat says, beside what
    memory, a bare pipe and the disk can do. In the mode 'file' clients keep the model in a file.
    What would need more memory or disk than there is here is not run but shown with its need.

    With --codecs it compares bytes, seconds and error of codecs, in the mode 'pull', with those of
    the exchange without. Codecs with a loss are applied to updates, exact ones both ways; in
    int8/cast, int8 is for updates and cast for models. Where a
    link of --network would take longer than 20 s for the model, a shorter one is measured, and the
    figures of the whole are worked out, unless --whole is given.

    It works in the folder runs, on the disk that it measures, and leaves nothing there.
    """
    from flstream.report.bench.outputs import BenchOutputs
    from flstream.report.bench.progress import watching_bench
    from flstream.report.console import error_console, report_error
    from flstream.simulation.interruption import stoppable

    exchange = ExchangeOptions(model_size, clients, network, chunk_size, tensors, repeat)
    if codecs is None:
        if whole:
            raise UsageError("--whole is for --codecs; modes are measured with the whole model")
        measure = _modes_measured(mode_plan(exchange, modes))
    else:
        for option, given in (("--modes", modes), ("--plot", plot)):
            if given is not None:
                raise UsageError(f"{option} is for modes; leave it out with --codecs")
        measure = _codecs_measured(codec_plan(exchange, codecs, whole=whole))
    outputs = BenchOutputs(json, plot)
    try:
        with stoppable():
            with watching_bench(error_console()) as watcher:
                found = measure(watcher)
            outputs.write(found)
    except (KeyboardInterrupt, AbortedError):
        report_error("the bench was stopped; nothing of it is left")
        raise typer.Exit(STOPPED) from None
    if found.failed:
        raise typer.Exit(FAILED)


def _modes_measured(plan: Plan) -> Callable[[Watcher], BenchFound]:
    from flstream.bench.compare import compare
    from flstream.bench.document import document
    from flstream.report.bench.outputs import BenchFound
    from flstream.report.bench.tables import print_comparison

    def measure(watcher: Watcher) -> BenchFound:
        comparison = compare(plan, Path("runs"), watcher)

        def draw(path: Path, kind: str) -> None:
            from flstream.report.bench.plot import draw_memory

            draw_memory(plan, comparison.results, path, kind)

        return BenchFound(
            document(plan, comparison),
            lambda console: print_comparison(console, plan, comparison),
            draw,
            any(result.failure is not None for result in comparison.results),
        )

    return measure


def _codecs_measured(plan: CodecBenchPlan) -> Callable[[Watcher], BenchFound]:
    from flstream.bench.codec_compare import compare_codecs
    from flstream.bench.document import codec_document
    from flstream.report.bench.codec_tables import print_codecs
    from flstream.report.bench.outputs import BenchFound

    def measure(watcher: Watcher) -> BenchFound:
        results = compare_codecs(plan, Path("runs"), watcher)
        return BenchFound(
            codec_document(plan, results),
            lambda console: print_codecs(console, plan, results),
            None,
            any(result.failure is not None for result in results),
        )

    return measure
