"""``flstream bench``: measure the transfer modes side by side on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flstream.cli import options
from flstream.cli.status import FAILED, STOPPED
from flstream.errors import AbortedError, UsageError

if TYPE_CHECKING:
    from flstream.bench.compare import Comparison
    from flstream.bench.plan import Mode, Plan

_STDOUT = "-"
_REPEAT = 3
# Bytes that a round moves in one direction, above which a single run is long enough to average
# out the noise of a shared machine.
_LONG_BYTES = 10 * 10**9


def bench(
    model_size: Annotated[
        str, typer.Option(help="Size of the model, such as 256MiB or 5GB.", metavar="SIZE")
    ],
    clients: Annotated[int, typer.Option(help="Number of clients.", min=1, max=64)] = 2,
    modes: Annotated[
        str, typer.Option(help="Modes to compare, with commas.", metavar="MODES")
    ] = "pull,push,native,file",
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
            help="Runs of each case; medians count.", min=1, show_default="3, or 1 beyond 10 GB"
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
    """Measure the transfer modes side by side.

    Runs FedAvg's exchange of a model, without training, between a server and clients in processes
    of their own: each mode at each chunk size in turn, as often as --repeat says, beside what
    memory, a bare pipe and the disk can do. In the mode 'file' clients keep the model in a file.
    What would need more memory or disk than there is here is not run but shown with its need.

    It works in the folder runs, on the disk that it measures, and leaves nothing there.
    """
    from flstream.bench.compare import compare
    from flstream.report.bench.progress import watching_bench
    from flstream.report.console import error_console, report_error
    from flstream.simulation.interruption import stoppable

    plan = _plan(model_size, clients, modes, chunk_size, tensors, repeat)
    targets = _Targets(json, plot)
    try:
        with stoppable():
            with watching_bench(error_console()) as watcher:
                comparison = compare(plan, Path("runs"), watcher)
            targets.write(plan, comparison)
    except (KeyboardInterrupt, AbortedError):
        report_error("the bench was stopped; nothing of it is left")
        raise typer.Exit(STOPPED) from None
    if any(result.failure is not None for result in comparison.results):
        raise typer.Exit(FAILED)


class _Targets:
    """Outputs of the bench: a table or JSON on stdout, a JSON file, a plot.

    The paths are checked on construction, so that one that cannot be written is reported before
    minutes of measuring.

    Args:
        json: value of ``--json``; None if it is not given.
        plot: value of ``--plot``; None if it is not given.
    """

    def __init__(self, json: str | None, plot: Path | None) -> None:
        from flstream.report.bench.files import Target

        self._to_stdout = json == _STDOUT
        self._json = None if json is None or self._to_stdout else Target("--json", Path(json))
        self._kind = "" if plot is None else _picture_kind(plot)
        self._plot = None if plot is None else Target("--plot", plot)

    def write(self, plan: Plan, comparison: Comparison) -> None:
        import json

        from flstream.bench.document import document
        from flstream.report.bench.tables import print_comparison
        from flstream.report.console import make_console

        text = json.dumps(document(plan, comparison), indent=2)
        if self._json is not None:
            self._json.write(lambda path: _write_text(path, text + "\n"))
        if self._plot is not None:
            from flstream.report.bench.plot import draw_memory

            self._plot.write(lambda path: draw_memory(plan, comparison.results, path, self._kind))
        if self._to_stdout:
            typer.echo(text)
        else:
            print_comparison(make_console(), plan, comparison)


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _picture_kind(plot: Path) -> str:
    from flstream.report.bench.files import PICTURES

    kind = plot.suffix.lower()
    if kind not in PICTURES:
        raise UsageError(f"--plot {plot}: the name must end in one of {', '.join(PICTURES)}")
    return kind


def _plan(
    model_size: str,
    clients: int,
    modes: str,
    chunk_size: str,
    tensors: int | None,
    repeat: int | None,
) -> Plan:
    from flstream.bench.plan import Plan

    model_bytes = options.size("--model-size", model_size)
    if model_bytes % 4 or model_bytes == 0:
        raise UsageError(f"--model-size {model_size}: the weights are float32, so a multiple of 4")
    if tensors is not None and tensors > model_bytes // 4:
        raise UsageError(f"--tensors {tensors}: more than the model has weights")
    if repeat is None:
        repeat = _REPEAT if clients * model_bytes <= _LONG_BYTES else 1
    chunk_sizes = dict.fromkeys(options.chunk_size(part.strip()) for part in chunk_size.split(","))
    return Plan(model_bytes, clients, _modes(modes), list(chunk_sizes), tensors, repeat)


def _modes(text: str) -> list[Mode]:
    from flstream.bench.plan import MODES

    known: dict[str, Mode] = {mode: mode for mode in MODES}
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        what = f"there is no mode {unknown[0]!r}" if unknown else "no mode is named"
        raise UsageError(f"--modes {text}: {what}; known are {', '.join(MODES)}")
    return [known[name] for name in dict.fromkeys(names)]
