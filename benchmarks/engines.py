"""Measure rounds under each engine: local, two agents over TCP, and a Ray cluster of two nodes.

All is on this machine, so that what is compared are the ways that models take. Engines alternate,
medians of all rounds but the first of each run are taken, and the final models are compared. One
checkpoint is kept, so that the next one takes its pages: where a virtual machine has to be given
fresh ones for each, as much time goes into that as into a round. Ray runs in a network of its own,
if it is installed, and unshare and ip are.

    python benchmarks/engines.py [--size 256MiB] [--clients 2] [--repeat 3] [--json FILE]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rows import Row, print_table

from flstream.units import format_bytes, parse_bytes

JOB = Path(__file__).parents[1] / "jobs" / "exchange" / "job.conf"
MOST_OVER_IDLE = 64 << 20
# A round over TCP takes at most so many times as long as one over socket pairs.
MOST_TIMES = 2.5
FLSTREAM = f"{sys.executable} -m flstream"

RUN = "{flstream} simulate {job} -q {settings} --run-dir {run}"
SCRIPTS = {
    "local": RUN,
    "join": """
        rm -f {run}.key
        for node in 1 2; do
            {flstream} join 127.0.0.1:7799 --key-file {run}.key --quiet &
        done
        """
    + RUN
    + """ --engine join --bind 127.0.0.1:7799 --nodes 2 --key-file {run}.key
        wait
        """,
    "ray": """
        ray() {{ {python} -m ray.scripts.scripts "$@" --disable-usage-stats; }}
        {{ ray start --head --node-ip-address=127.0.0.2 --port=6399 --num-cpus=0 \
            --include-dashboard=false --temp-dir={folder}/r --object-store-memory=80000000
        for node in 3 4; do
            ray start --address=127.0.0.2:6399 --node-ip-address=127.0.0.$node --num-cpus=2 \
                --object-store-memory=80000000
        done }} > {folder}/ray.txt 2>&1
        """
    + RUN
    + " --engine ray:127.0.0.2:6399",
}
ALONE = ["unshare", "--user", "--map-root-user", "--net", "--pid", "--fork", "--kill-child"]


def measure(engine: str, folder: Path, number: int, settings: str) -> dict[str, Any]:
    """Run the job under an engine, and return its summary."""
    run = folder / f"{engine}-{number}"
    script = SCRIPTS[engine].format(
        flstream=FLSTREAM,
        python=sys.executable,
        job=JOB,
        settings=settings,
        run=run,
        folder=folder,
    )
    # The network of its own has addresses that stand for machines, and no port that is in use.
    script = "set -e\nip link set lo up\n" + script
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    command = [*ALONE, "--mount-proc", "bash", "-c", script]
    subprocess.run(command, check=True, env=environment)
    summary: dict[str, Any] = json.loads((run / "summary.json").read_text())
    shutil.rmtree(run)
    return summary


def seconds_of(summary: dict[str, Any]) -> list[float]:
    """Return the seconds of each round but the first, which also makes memory ready."""
    keys = ("download", "train", "upload_and_fold", "checkpoint")
    return [sum(each[key] for key in keys) for each in summary["rounds"][1:]]


def over_idle(summary: dict[str, Any]) -> int:
    """Return the bytes of the server over idle."""
    server = summary["memory"]["server"]
    return max(int(server["peak_rss"] - server["idle_rss"]), 0)


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--size", default="256MiB", help="size of the model")
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    engines = [each for each in SCRIPTS if each != "ray" or importlib.util.find_spec("ray")]
    settings = f"-n {options.clients} -r 6 --set model.args.size={options.size}"
    settings += " --set checkpoints.keep=1"
    done: dict[str, list[dict[str, Any]]] = {engine: [] for engine in engines}
    with tempfile.TemporaryDirectory(prefix="fl", dir=".") as name:
        for number in range(options.repeat):
            for engine in engines:
                print(f"measuring: {engine}", file=sys.stderr)
                folder = Path(name).absolute()
                if engine == "ray":  # its sockets' paths may have 107 bytes
                    with tempfile.TemporaryDirectory(prefix="fl", dir="/tmp") as short:
                        done[engine].append(measure(engine, Path(short), number, settings))
                else:
                    done[engine].append(measure(engine, folder, number, settings))
    digests = {each["model"]["digest"] for runs in done.values() for each in runs}
    rounds = {
        engine: statistics.median(s for run in runs for s in seconds_of(run))
        for engine, runs in done.items()
    }
    what = f"{format_bytes(parse_bytes(options.size))} x {options.clients}"
    rows = []
    for engine in engines:
        if engine != "local":
            figures = f"{rounds[engine]:.2f} s", f"{rounds['local']:.2f} s local"
            ratio = rounds[engine] / rounds["local"]
            rows.append(Row(f"a round of {what}, {engine}", *figures, ratio, most=MOST_TIMES))
        used = max(map(over_idle, done[engine]))
        figures = format_bytes(used), format_bytes(MOST_OVER_IDLE)
        rows.append(Row(f"server over idle, {engine}", *figures, used / MOST_OVER_IDLE, most=1.0))
    print_table(rows)
    print("all models are the same" if len(digests) == 1 else f"models differ: {digests}")
    if options.json:
        options.json.write_text(json.dumps([row._asdict() for row in rows], indent=2))
    if len(digests) > 1 or not all(row.is_met for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
