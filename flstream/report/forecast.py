"""Text and JSON of ``flstream validate``: the forecast of a job, and whether it fits."""

from __future__ import annotations

from typing import Any

import msgspec
from rich.console import Console
from rich.text import Text

from flstream.job import Job
from flstream.report.columns import wrapped
from flstream.report.console import print_facts, print_table
from flstream.report.network import describe_links
from flstream.report.text import counted, pieces
from flstream.simulation.forecasting.fitting import Available, Fit
from flstream.simulation.forecasting.forecast import Forecast, Traffic
from flstream.telemetry.events import LinkFacts
from flstream.text import printable
from flstream.units import format_bytes

_TRAINING = (
    "For the exchange alone; training adds its own: gradients are as large as the weights that "
    "a client trains, and Adam keeps two numbers more for each."
)


def print_forecast(console: Console, job: Job, need: Forecast, room: Available, fit: Fit) -> None:
    """Print a forecast: processes, traffic, memory, disk, and whether they fit this machine.

    Args:
        console: console to print to.
        job: the job.
        need: forecast of the job.
        room: available memory and disk.
        fit: result of comparing the two.
    """
    width = console.width if console.is_terminal else None
    print_facts(
        console, [(name, Text(printable(value))) for name, value in _facts(job, need)], width
    )
    head = ["", "bytes", "requests", "chunks"]
    print_table(console, f"A round ({_mode(job, need)})", head, _traffic_rows(need))
    title = "Peak memory (over idle; of all processes, all they have)"
    print_table(console, title, ["", "at most", "available"], _memory_rows(job, need, room))
    for line in wrapped([_TRAINING], console.width):
        console.print(Text(line, style="dim"))
    print_table(console, "Disk", ["", "at most", "free"], _disk_rows(job, need, room))
    console.print()
    _print_verdict(console, job, need, room, fit, width)


def forecast_json(job: Job, need: Forecast, room: Available, fit: Fit) -> dict[str, Any]:
    """Convert a forecast to JSON, with sizes in bytes.

    Args:
        job: the job.
        need: forecast of the job.
        room: available memory and disk.
        fit: result of comparing the two.
    """

    def way(traffic: Traffic) -> dict[str, int]:
        return traffic._asdict()

    privacy = {}
    if need.epsilon is not None:
        privacy["privacy"] = {"epsilon": need.epsilon, "delta": job.privacy.delta}
    return {
        "job": job.name,
        "rounds": job.planned_rounds,
        "evaluations": need.evaluations,
        "models_scored": need.scored,
        "evaluate": job.stages[-1].args.evaluate,
        "sites": job.clients.count,
        "sites_per_round": need.sites,
        "workers": need.workers,
        "filters": {"up": list(map(str, job.filters.up)), "down": list(map(str, job.filters.down))},
        "model": {"bytes": need.model_bytes, "tensors": need.tensors},
        "transfer": {
            "mode": need.mode,
            "chunk_size": need.chunk_size,
            "round": {
                "down": way(need.down),
                "up": way(need.up),
                "evaluation": way(need.evaluation),
            },
            "run": {"down": way(need.run_down), "up": way(need.run_up)},
        },
        "memory": {
            "server_over_idle": need.server_bytes,
            "client_over_idle": need.client_bytes,
            "processes": need.processes,
            "total": need.total_bytes,
            **_elsewhere(job, need, room),
            "available": room.memory,
        },
        "disk": {
            "round": need.round_disk_bytes,
            "run": need.disk_bytes,
            "free": room.disk,
            "folder": str(room.folder.absolute()),
        },
        "fits": fit.fits,
        "lacking": list(fit.lacking),
        "advice": list(fit.advice),
        **privacy,
        **({"network": msgspec.to_builtins(_links(job))} if job.network.is_on else {}),
    }


def _links(job: Job) -> dict[str, LinkFacts]:
    """Return the emulated link of each site."""
    links = job.network.links(job.clients.site_names, job.seed)
    return {site: link.facts for site, link in links.items()}


def _elsewhere(job: Job, need: Forecast, room: Available) -> dict[str, int]:
    """Return what is of use only where workers are on other machines."""
    if job.engine.is_local:
        return {}
    return {
        "here": need.bytes_here,
        "worker": need.worker_bytes,
        "workers_of_a_node_like_this": need.workers_in(room.memory),
    }


def _facts(job: Job, need: Forecast) -> list[tuple[str, str]]:
    clients = job.clients
    sites = counted(clients.count, "site")
    if need.sites < clients.count:
        sites += f", {need.sites:,} of them a round"
    own = need.workers == clients.count
    where = "each in a process of its own"
    if not own:
        where = "in one process" if need.workers == 1 else f"in {need.workers} processes"
    evaluated = f", {need.evaluations:,} of them evaluated" if need.evaluations else ""
    size = f"{format_bytes(need.model_bytes)} in {counted(need.tensors, 'tensor')}"
    workflows = ", then ".join(stage.name for stage in job.stages)
    if workflows != "fedavg":
        workflows += " (counted as one fold a round)"
    if any(stage.args.evaluate == "received" for stage in job.stages):
        evaluated += ", scored by metrics that come with updates of the next"
    filters = [
        f"{way}: {', '.join(map(str, listed))}"
        for way, listed in (("up", job.filters.up), ("down", job.filters.down))
        if listed
    ]
    facts = [
        ("job", f"{job.name}, {counted(job.planned_rounds, 'round')}{evaluated}"),
        ("workflow", workflows),
        ("sites", f"{sites}, {where}"),
        ("training code", _training(job)),
        *([("filters", "; ".join(filters))] if filters else []),
        *([("links", describe_links(_links(job).values()))] if job.network.is_on else []),
        ("model", f"{size}, from {_model(job)}"),
    ]
    if need.epsilon is not None:
        spent = f"epsilon {need.epsilon:.4g} at delta {job.privacy.delta:g}"
        facts.append(("privacy", f"{spent} after {counted(job.planned_rounds, 'round')}"))
    return facts


def _training(job: Job) -> str:
    if job.train.learner is not None:
        return _short(job, job.train.learner)
    return _short(job, str(job.train.script))


def _model(job: Job) -> str:
    return _short(job, str(job.model.initial or job.model.factory))


def _short(job: Job, path: str) -> str:
    """Return a path relative to the job's folder if it is below it, else unchanged."""
    return path.removeprefix(f"{job.folder}/")


def _mode(job: Job, need: Forecast) -> str:
    streaming = job.streaming
    # What receivers have, and what codecs make of it, shows only in the run.
    is_most = streaming.codecs.up or streaming.codecs.down or streaming.reuse == "auto"
    most = ", at most" if is_most and need.mode in ("pull", "map") else ""
    return f"{need.mode} mode, {pieces(need.chunk_size)}{most}"


def _traffic_rows(need: Forecast) -> list[list[str]]:
    ways = [("models down to the sites", need.down), ("updates up", need.up)]
    if need.evaluations or need.scored:
        ways.append(("models down for evaluation", need.evaluation))
    whole = need.run_down.plus(need.run_up)
    everything = f"all of {counted(need.rounds, 'round')}"
    if need.scored:
        everything += f", and {counted(need.scored, 'model')} scored"
    return [
        [name, format_bytes(way.bytes), f"{way.requests:,}", f"{way.chunks:,}"]
        for name, way in [*ways, (everything, whole)]
    ]


def _memory_rows(job: Job, need: Forecast, room: Available) -> list[list[str]]:
    each = "client" if need.workers == 1 else f"each of {need.workers} clients"
    rows = [
        ["server", format_bytes(need.server_bytes), ""],
        [each, format_bytes(need.client_bytes), ""],
    ]
    available = format_bytes(room.memory)
    if job.engine.is_local:
        total = format_bytes(need.total_bytes)
        return [*rows, [f"all {need.processes} processes", total, available]]
    fitting = min(need.workers_in(room.memory), need.workers)
    alike = f"{fitting:,} of {counted(need.workers, 'worker')}"
    return [
        *rows,
        ["all on this machine", format_bytes(need.bytes_here), available],
        ["a worker, on its node", format_bytes(need.worker_bytes), ""],
        ["a node like this machine", alike, available],
    ]


def _disk_rows(job: Job, need: Forecast, room: Available) -> list[list[str]]:
    free = "not told" if room.disk is None else format_bytes(room.disk)
    name = f"the run (checkpoints.keep = {job.checkpoints.keep})"
    return [
        ["a round", format_bytes(need.round_disk_bytes), ""],
        [name, format_bytes(need.disk_bytes), free],
    ]


def _print_verdict(
    console: Console, job: Job, need: Forecast, room: Available, fit: Fit, width: int | None
) -> None:
    head, style = ("fits", "bold green") if fit.fits else ("does not fit", "bold red")
    sentences = [f"{head}: {each}" for each in fit.lacking]
    if fit.fits:
        disk = ""
        if room.disk is not None:
            disk = f", {format_bytes(need.disk_bytes)} of {format_bytes(room.disk)} of disk"
        bytes_here = need.total_bytes if job.engine.is_local else need.bytes_here
        memory = f"{format_bytes(bytes_here)} of {format_bytes(room.memory)} of memory"
        here = "" if job.engine.is_local else " here"
        sentences = [f"{head}{here}: at most {memory}{disk}"]
    sentences += [f"to make it fit: {each}" for each in fit.advice]
    for line in wrapped(sentences, width):
        text = Text(printable(line))
        if line.startswith(head):
            text.stylize(style, 0, len(head))
        console.print(text, soft_wrap=True)
