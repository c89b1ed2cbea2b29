"""flstream beside NVFlare, Flower and pfl-research: seconds and memory, in one run, alternating.

    python benchmarks/peers/compare.py [--size 256MiB] [--clients 2,4] [--repeat 3]

Each peer is installed first, into an environment of its own under ``.venvs/``. What is compared,
and how, is in ``README.md``.
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

from contestants import EXCHANGE, PEERS, RACE, Contestant, Result, Task, install, measure, python_of
from table import EXCHANGE_FIGURES, RACE_FIGURES, draw, grid
from tree import adopt_orphans

from flstream.telemetry.machine import this_machine
from flstream.units import format_bytes, parse_bytes

sys.path.insert(1, str(Path(__file__).parents[1]))
from rows import markdown_table, print_table

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
        for contestant, runs in ((result.contestant, result.runs) for result in results):
            assert isinstance(runs, list)
            title = f"{contestant.name}, {task.clients} clients, run {number} of {repeat}"
            print(title, file=sys.stderr, flush=True)
            runs.append(measure(contestant, task))
            steady = ", ".join(f"{seconds:.2f}" for seconds in runs[-1].rounds[1:3])
            line = runs[-1].failure or f"steady rounds: {steady} s"
            print(f"  {line}", file=sys.stderr, flush=True)
    return results


def versions(peers: Sequence[str]) -> dict[str, str]:
    """Return the version of each peer's package, with those of torch and Ray."""
    code = "import importlib.metadata as m, sys; print(*map(m.version, sys.argv[1:]))"
    texts = {}
    for peer in peers:
        packages = [PEERS[peer].package, "torch", *(["ray"] if peer == "flower" else [])]
        command = [str(python_of(peer)), "-c", code, *packages]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            texts[PEERS[peer].title] = "not installed"
            continue
        own, *others = done.stdout.split()
        beside = ", ".join(map(" ".join, zip(packages[1:], others, strict=True)))
        texts[PEERS[peer].title] = f"{own} ({beside})"
    return texts


def selected(contestants: Sequence[Contestant], only: Sequence[str]) -> list[Contestant]:
    """Return the selected contestants, after the first one, which the others are compared with."""
    first, *others = contestants
    chosen = [each for each in others if not only or each.name in only or each.peer in only]
    return [first, *chosen] if chosen else []


def main(options: argparse.Namespace) -> None:
    """Install, measure, and print the tables."""
    began = datetime.now(UTC).astimezone()
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
    parts = [
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

    here = this_machine()
    machine = f"{here.cores} cores, {format_bytes(here.memory)}, {here.system}"
    machine += f", Python {here.versions['python']}"
    about = [
        f"{began:%Y-%m-%d}, {machine}. Medians of {options.repeat} runs, alternating.",
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
        document = {
            "date": began.isoformat(timespec="seconds"),
            "machine": machine,
            "versions": packages,
            "model_bytes": size,
            "rounds": options.rounds,
            "parts": [
                {"title": title, "results": [result.to_dict() for result in results]}
                for title, results, _ in parts
            ],
        }
        options.json.write_text(json.dumps(document, indent=2) + "\n")
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
