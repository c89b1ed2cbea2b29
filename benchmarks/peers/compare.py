"""flstream beside NVFlare, Flower and pfl-research: seconds and memory, in one run, alternating.

    python benchmarks/peers/compare.py [--size 256MiB] [--clients 2,4] [--repeat 3]

The peers have to be installed; see ``install.py``. What is compared, and how, is in ``README.md``.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from contestants import EXCHANGE, PACKAGES, RACE, TITLES, Contestant, python_of
from measuring import Task, measure
from record import Result, Run
from table import Grid, exchange_grid, markdown, print_grid, race_grid
from tree import adopt_orphans

from flstream.report.console import make_console
from flstream.telemetry.machine import this_machine
from flstream.units import format_bytes, parse_bytes

LEAST_ROUNDS = 3
RACE_TASK = Task(clients=1000, rounds=30)


def compare(contestants: Sequence[Contestant], task: Task, repeat: int) -> list[Result]:
    """Run contestants in turn, each of them ``repeat`` times."""
    runs: dict[str, list[Run]] = {each.name: [] for each in contestants}
    for number in range(1, repeat + 1):
        for each in contestants:
            _print_progress(f"{each.name}, {task.clients} clients, run {number} of {repeat}")
            run = measure(each, task)
            runs[each.name].append(run)
            steady = ", ".join(f"{seconds:.2f}" for seconds in run.rounds[1:3])
            _print_progress(
                f"  failed: {run.failure}" if run.failure else f"  steady rounds: {steady} s"
            )
    return [Result(each, runs[each.name]) for each in contestants]


def _print_progress(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


def versions(peers: Sequence[str]) -> dict[str, str]:
    """Return the version of each peer's package, with those of torch and Ray."""
    asked = "import importlib.metadata as m, sys; print(*map(m.version, sys.argv[1:]))"
    found = {}
    for peer in peers:
        packages = [PACKAGES[peer], "torch", *(["ray"] if peer == "flower" else [])]
        command = [str(python_of(peer)), "-c", asked, *packages]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            found[TITLES[peer]] = "not installed"
            continue
        own, *others = done.stdout.split()
        with_them = ", ".join(
            f"{name} {version}" for name, version in zip(packages[1:], others, strict=True)
        )
        found[TITLES[peer]] = f"{own} ({with_them})"
    return found


def machine() -> str:
    """Return a description of this machine."""
    here = this_machine()
    memory, python = format_bytes(here.memory), here.versions["python"]
    return f"{here.cores} cores, {memory}, {here.system}, Python {python}"


def selected(contestants: Sequence[Contestant], only: Sequence[str]) -> list[Contestant]:
    """Return the selected contestants, after the first one, which the others are compared with."""
    first, *others = contestants
    chosen = [each for each in others if not only or each.name in only or each.peer in only]
    return [first, *chosen] if chosen else []


def main(args: argparse.Namespace) -> None:
    """Measure, and print the tables."""
    began = datetime.now(UTC).astimezone()
    size, counts = parse_bytes(args.size), [int(count) for count in args.clients.split(",")]
    if args.rounds < LEAST_ROUNDS:
        raise SystemExit(
            f"--rounds must be {LEAST_ROUNDS} or more: the first and last do not count"
        )
    exchange = selected(EXCHANGE, args.only)
    race = [] if args.no_race else selected(RACE, args.only)
    peers = list(dict.fromkeys(each.peer for each in [*exchange, *race]))
    found = versions(peers)

    # Headings, and what was measured under them.
    exchanged = [
        (
            f"{format_bytes(size)} exchanged, {count} clients",
            compare(exchange, Task(count, args.rounds, size), args.repeat),
        )
        for count in counts
        if exchange
    ]
    raced = []
    if race:
        results = compare(race, RACE_TASK, args.repeat)
        raced.append(("1,000 clients of 18 digits, 100 a round", results))

    grids = [exchange_grid(title, results) for title, results in exchanged]
    grids += [race_grid(title, results) for title, results in raced]
    about = [
        f"{began:%Y-%m-%d}, {machine()}. Medians of {args.repeat} runs, alternating.",
        ", ".join(f"{title} {version}" for title, version in found.items()) + ".",
    ]
    _show(grids, about)
    if args.markdown:
        page = "\n\n".join([*about, *map(markdown, grids)])
        args.markdown.write_text(page + "\n")
    if args.json:
        document = {
            "date": began.isoformat(timespec="seconds"),
            "machine": machine(),
            "versions": found,
            "model_bytes": size,
            "rounds": args.rounds,
            "exchange": [
                {"clients": count, "results": [each.to_dict() for each in results]}
                for count, (_, results) in zip(counts, exchanged, strict=False)
            ],
            "race": [each.to_dict() for _, results in raced for each in results],
        }
        args.json.write_text(json.dumps(document, indent=2) + "\n")
    if args.plot:
        from chart import EXCHANGE_PANELS, RACE_PANELS, Part, draw

        parts = [Part(title, EXCHANGE_PANELS, results) for title, results in exchanged]
        parts += [Part(title, RACE_PANELS, results) for title, results in raced]
        draw(args.plot, "flstream and its peers, medians", parts)
        _print_progress(f"chart: {args.plot}")


def _show(grids: Sequence[Grid], about: Sequence[str]) -> None:
    console = make_console()
    for grid in grids:
        print_grid(console, grid)
    for line in about:
        console.print(line)
    console.print(
        "start-up: from the command to the first round. round: one that is not the first. "
        "server: peak RSS of the server's process over its own after its imports. "
        "all: peak PSS of all processes. times: as many as flstream's."
    )


def _stop(number: int, _frame: object) -> None:
    # Raised like Ctrl-C's, so that every process is ended on the way out.
    raise SystemExit(128 + number)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Compare flstream with its peers.")
    parser.add_argument("--size", default="256MiB", help="bytes of the model (256MiB)")
    parser.add_argument("--clients", default="2", help="numbers of clients, such as 2,4 (2)")
    parser.add_argument("--rounds", type=int, default=4, help="rounds of the exchange (4)")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each (3)")
    names = ", ".join(each.name for each in [*EXCHANGE, *RACE])
    parser.add_argument("--only", nargs="*", default=[], help=f"peers, or some of: {names}")
    parser.add_argument("--no-race", action="store_true", help="leave out the small model")
    parser.add_argument("--json", type=Path, help="file for all figures")
    parser.add_argument("--markdown", type=Path, help="file for the tables")
    parser.add_argument("--plot", type=Path, help="file for a chart, PNG")
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGHUP, _stop)
    adopt_orphans()
    try:
        main(parser.parse_args())
    except KeyboardInterrupt:
        raise SystemExit(130) from None
