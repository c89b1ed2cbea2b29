"""``flstream bench``: what streaming saves, measured on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flstream.errors import UsageError
from flstream.units import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flstream.bench.compare import Mode, Plan, Result


def bench(
    model_size: Annotated[
        str, typer.Option(help="Size of the model, such as 256MiB or 5GB.", metavar="SIZE")
    ],
    clients: Annotated[int, typer.Option(help="Number of clients.", min=1, max=64)] = 2,
    modes: Annotated[str, typer.Option(help="Modes to compare, with commas.")] = "pull,push,native",
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
    from flstream.report.bench import print_comparison
    from flstream.report.console import error_console, make_console

    plan = _plan(model_size, clients, modes, chunk_size, tensors, repeat)
    progress = error_console()
    results = compare(plan, Path("runs"), lambda step: progress.print(f"{step} ...", style="dim"))
    if json is not None:
        _write_json(plan, results, json)
    if json != "-":
        print_comparison(make_console(), plan, results)


def _plan(
    model_size: str, clients: int, modes: str, chunk_size: str, tensors: int | None, repeat: int
) -> Plan:
    from flstream.bench.compare import Plan

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

    try:
        return parse_bytes(text)
    except ValueError as error:
        raise UsageError(f"{option} {text}: {error}") from error


def _modes(text: str) -> list[Mode]:
    from flstream.bench.compare import MODES

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
