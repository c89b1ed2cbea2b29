"""``flstream bench``: what streaming saves, measured on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.table import Table

    from flstream.bench.compare import Measurement, Mode, Plan, Result


def bench(
    model_size: Annotated[
        str, typer.Option(help="Size of the model, such as 256MiB or 5GB.", metavar="SIZE")
    ],
    clients: Annotated[int, typer.Option(help="Number of clients.", min=1, max=64)] = 2,
    modes: Annotated[str, typer.Option(help="Modes to compare, with commas.")] = "pull,native",
    chunk_size: Annotated[
        str, typer.Option(help="Longest frame, a multiple of 16 bytes.", metavar="SIZE")
    ] = "2MiB",
    tensors: Annotated[
        int | None,
        typer.Option(help="Number of tensors, all of one size.", min=1, show_default="a mix"),
    ] = None,
    repeat: Annotated[int, typer.Option(help="Runs of each mode; medians count.", min=1)] = 3,
    json: Annotated[
        str | None,
        typer.Option(help="Write the figures to this file as JSON; - is stdout.", metavar="FILE"),
    ] = None,
) -> None:
    """Measure the transfer modes side by side.

    Runs FedAvg's exchange of a model, without training, between a server and clients in processes
    of their own: once in each mode, in turn, as often as --repeat says. A mode that would need
    more memory than this machine has available is not run but shown with its need.
    """
    from flstream.bench.compare import compare
    from flstream.report.console import error_console, make_console
    from flstream.units import format_bytes

    plan = _plan(model_size, clients, modes, chunk_size, tensors, repeat)
    progress = error_console()
    results = compare(plan, Path("runs"), lambda step: progress.print(f"{step} ...", style="dim"))
    if json is not None:
        _write_json(plan, results, json)
    if json != "-":
        console = make_console()
        console.print(
            f"A model of {format_bytes(plan.model_bytes)} to and from {clients} clients, "
            f"{format_bytes(plan.chunk_size)} chunks, medians of {repeat}:"
        )
        console.print(_table(results))
        for line in _verdict(results):
            console.print(line)


def _plan(
    model_size: str, clients: int, modes: str, chunk_size: str, tensors: int | None, repeat: int
) -> Plan:
    from flstream.bench.compare import Plan
    from flstream.errors import UsageError

    model_bytes = _size("--model-size", model_size)
    chunk_bytes = _size("--chunk-size", chunk_size)
    if model_bytes % 4 or model_bytes == 0:
        raise UsageError(f"--model-size {model_size}: the weights are float32, so a multiple of 4")
    if chunk_bytes % 16 or not 16 <= chunk_bytes <= 1 << 30:
        raise UsageError(f"--chunk-size {chunk_size}: a multiple of 16 bytes, at most 1 GiB")
    if tensors is not None and tensors > model_bytes // 4:
        raise UsageError(f"--tensors {tensors}: more than the model has weights")
    return Plan(model_bytes, clients, _modes(modes), chunk_bytes, tensors, repeat)


def _size(option: str, text: str) -> int:
    from flstream.errors import UsageError
    from flstream.units import parse_bytes

    try:
        return parse_bytes(text)
    except ValueError as error:
        raise UsageError(f"{option} {text}: {error}") from error


def _modes(text: str) -> list[Mode]:
    from flstream.bench.compare import MODES
    from flstream.errors import UsageError

    known: dict[str, Mode] = {mode: mode for mode in MODES}
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        what = f"there is no mode {unknown[0]!r}" if unknown else "no mode is named"
        raise UsageError(f"--modes {text}: {what}; known are {', '.join(MODES)}")
    return [known[name] for name in dict.fromkeys(names)]


def _write_json(plan: Plan, results: Sequence[Result], target: str) -> None:
    import json
    from dataclasses import asdict

    from flstream.errors import UsageError

    text = json.dumps(
        {"plan": asdict(plan), "results": [result.to_dict() for result in results]}, indent=2
    )
    if target == "-":
        typer.echo(text)
        return
    try:
        Path(target).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--json {target}: cannot be written: {error.strerror}") from error


def _table(results: Sequence[Result]) -> Table:
    from flstream.report.console import new_table
    from flstream.units import format_bytes

    table = new_table("", *(result.mode for result in results))
    rows: dict[str, Callable[[Measurement], str]] = {
        "model down to every client": lambda run: f"{run.download:.2f} s",
        "updates up, folded": lambda run: f"{run.upload_and_fold:.2f} s",
        "next model made durable": lambda run: f"{run.checkpoint:.2f} s",
        "requests a round": lambda run: f"{run.requests:,.0f}",
        "server, peak RSS over idle": lambda run: format_bytes(int(run.server_peak_rss)),
        "client, peak RSS over idle": lambda run: format_bytes(int(run.client_peak_rss)),
        "all processes, peak PSS": lambda run: format_bytes(int(run.total_peak_pss)),
    }
    medians = [result.median for result in results]
    for name, figure in rows.items():
        table.add_row(name, *(figure(run) if run else "not run" for run in medians))
    table.add_row("memory foretold", *(format_bytes(each.predicted_bytes) for each in results))
    return table


def _verdict(results: Sequence[Result]) -> list[str]:
    """What streaming saves here, in a sentence, where both modes were asked for."""
    from flstream.units import format_bytes

    by_mode = {result.mode: result for result in results}
    if "pull" not in by_mode or "native" not in by_mode:
        return []
    pull, native = by_mode["pull"].median, by_mode["native"].median
    have = format_bytes(by_mode["pull"].available_bytes)
    if pull is None:
        need = format_bytes(by_mode["pull"].predicted_bytes)
        return [f"The clients' models alone need about {need}, and {have} are available."]
    total = format_bytes(int(pull.total_peak_pss))
    if native is None:
        need = format_bytes(by_mode["native"].predicted_bytes)
        return [f"Streaming ran in {total}; native needs about {need}, {have} are available."]
    saved = 1 - pull.total_peak_pss / native.total_peak_pss
    server = native.server_peak_rss / max(pull.server_peak_rss, 1)
    return [
        f"Streaming took {saved:.0%} less memory in all, "
        f"and {server:.0f} times less of the server's."
    ]
