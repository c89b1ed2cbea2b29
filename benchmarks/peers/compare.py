"""flstream beside NVFlare, Flower and pfl-research: seconds and memory, in one run, alternating.

    python benchmarks/peers/compare.py [--size 256MiB] [--clients 2,4] [--repeat 3]

Each peer is installed first, into an environment of its own under ``.venvs/``. What is compared,
and how, is in ``README.md``.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from contestants import (
    EXCHANGE,
    PEERS,
    RACE,
    REQUIREMENTS,
    Contestant,
    Result,
    Task,
    install,
    measure,
)
from table import EXCHANGE_FIGURES, RACE_FIGURES, draw, grid
from tree import adopt_orphans

from flstream import __version__
from flstream.units import format_bytes, parse_bytes

sys.path.insert(1, str(Path(__file__).parents[1]))
from rows import machine, markdown_table, print_table

RACE_TASK = Task(clients=1000, rounds=30)
LEGEND = (
    "start-up: from the command to the first round. round: one that is not the first. server: peak "
    "RSS of the server's process over its own after its imports. all: peak PSS of all processes. "
    "times: divided by flstream's."
)


def compare(contestants: Sequence[Contestant], task: Task, repeat: int) -> list[Result]:
    """Run contestants in turn, each of them ``repeat`` times."""
    results = [Result(contestant, []) for contestant in contestants]
    for number in range(1, repeat + 1):
        for result in results:
            run = measure(result.contestant, task)
            result.runs.append(run)
            line = run.failure or f"second round: {run.rounds[1]:.2f} s"
            title = f"{result.contestant.name}, {task.clients} clients, {number} of {repeat}"
            print(f"{title}: {line}", file=sys.stderr, flush=True)
    return results


def versions(peers: Sequence[str]) -> dict[str, str]:
    """Return the versions that are installed for each peer, of its package, torch and Ray."""
    texts = {}
    for title, package, file in ((*PEERS[peer], REQUIREMENTS / f"{peer}.txt") for peer in peers):
        lines = file.read_text().splitlines() if file.exists() else []
        pins = dict(line.split("==") for line in lines if "==" in line)
        pinned = [f"{name} {pins[name]}" for name in ("torch", "ray") if name in pins]
        texts[title] = " ".join([pins.get(package, __version__), *pinned])
    return texts


def selected(contestants: Sequence[Contestant], only: Sequence[str]) -> list[Contestant]:
    """Return the selected contestants, after the first one, which the others are compared with."""
    first, *others = contestants
    chosen = [one for one in others if not only or one.name in only or one.peer in only]
    return [first, *chosen] if chosen else []


def main(options: argparse.Namespace) -> None:
    """Install, measure, and print the tables."""
    size, counts = parse_bytes(options.size), [int(count) for count in options.clients.split(",")]
    if options.rounds < 3:
        raise SystemExit("--rounds must be 3 or more: the first and last do not count")
    exchange = selected(EXCHANGE, options.only)
    race = [] if options.no_race else selected(RACE, options.only)
    peers = list(dict.fromkeys(contestant.peer for contestant in [*exchange, *race]))
    for peer in [] if options.no_install else peers:
        if peer != "flstream":
            install(peer)
    packages = versions(peers)
    parts: list[tuple[str, list[Result], Sequence[str]]] = [
        (
            f"{format_bytes(size)} exchanged, {count} clients",
            compare(exchange, Task(count, options.rounds, size), options.repeat),
            EXCHANGE_FIGURES,
        )
        for count in (counts if exchange else [])
    ]
    if race:
        results = compare(race, RACE_TASK, options.repeat)
        parts.append(("1,000 clients of 18 digits, 100 a round", results, RACE_FIGURES))

    about = [
        f"{date.today()}, {machine()}. Medians of {options.repeat} runs, alternating.",
        ", ".join(f"{title} {version}" for title, version in packages.items()) + ".",
    ]
    page = list(about)
    for part in parts:
        title, heads, rows, notes = grid(*part)
        print(title)
        print_table(heads, rows)
        print(*notes, "", sep="\n")
        page += [f"**{title}**", markdown_table(heads, rows), *notes]
    print(*about, LEGEND, sep="\n")
    if options.markdown:
        options.markdown.write_text("\n\n".join(page) + "\n")
    if options.json:
        figures = {title: [one.to_dict() for one in results] for title, results, _ in parts}
        options.json.write_text(json.dumps({"about": about, "parts": figures}, indent=2) + "\n")
    if options.plot:
        draw(options.plot, parts)


def _stop(number: int, _frame: object) -> None:
    # Raised like Ctrl-C's, so that every process is ended on the way out.
    raise SystemExit(128 + number)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Compare flstream with its peers.")
    parser.add_argument("--size", default="256MiB", help="bytes of the model (256MiB)")
    parser.add_argument("--clients", default="2", help="numbers of clients, such as 2,4 (2)")
    parser.add_argument("--rounds", type=int, default=4, help="rounds of the exchange (4)")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each (3)")
    names = ", ".join(contestant.name for contestant in [*EXCHANGE, *RACE])
    parser.add_argument("--only", nargs="*", default=[], help=f"peers, or some of: {names}")
    parser.add_argument("--no-race", action="store_true", help="leave out the small model")
    parser.add_argument("--no-install", action="store_true", help="take peers as they are")
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
