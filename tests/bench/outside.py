"""A sampler that knows nothing of flstream's own: psutil over the processes that a command starts.

It learns which process is the server, and which a client, from the events in the run directory, and
nothing else. To hold a whole bench against it::

    python tests/bench/outside.py --model-size 1GB --clients 2 --modes native,pull,push --repeat 1
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

INTERVAL = 0.01
# PSS makes the kernel walk all pages, while the process that has them waits for its page faults.
PSS_INTERVAL = 0.1
# Within this, two samplers of the same process agree.
TOLERANCE = 0.1


@dataclass
class Peaks:
    """The highest memory of one run, in bytes: RSS of each process, PSS of all at one time."""

    rss: dict[int, int] = field(default_factory=dict)
    total_pss: int = 0
    names: dict[int, str] = field(default_factory=dict)

    def of(self, kind: str) -> int:
        """The highest of the server, or of all clients."""
        prefix = "site-" if kind == "client" else "server"
        return max(self.rss[pid] for pid, name in self.names.items() if name.startswith(prefix))


def watch(command: list[str], folder: Path, output: Path) -> list[Peaks]:
    """Run a bench to its end, and return what was seen of each run, in order."""
    runs: dict[Path, Peaks] = {}
    pss_at = 0.0
    with output.open("w") as file, subprocess.Popen(command, cwd=folder, stdout=file) as bench:
        root = psutil.Process(bench.pid)
        while bench.poll() is None:
            for path in folder.glob("runs/bench-*/run-*"):
                runs.setdefault(path, Peaks())
            if runs:
                read_pss = time.monotonic() >= pss_at
                sample(root, list(runs)[-1], runs[list(runs)[-1]], pss=read_pss)
                if read_pss:
                    pss_at = time.monotonic() + PSS_INTERVAL
            time.sleep(INTERVAL)
    assert bench.returncode == 0
    return list(runs.values())


def sample(root: psutil.Process, run: Path, peaks: Peaks, *, pss: bool) -> None:
    """Look at all processes once."""
    try:
        learn_names(run / "events.jsonl", peaks)
        processes = [root, *root.children(recursive=True)]
    except (OSError, psutil.Error):
        return
    total = 0
    for process in processes:
        try:
            rss = process.memory_info().rss
            peaks.rss[process.pid] = max(peaks.rss.get(process.pid, 0), rss)
            total += process.memory_full_info().pss if pss else 0
        except psutil.Error:
            continue
    peaks.total_pss = max(peaks.total_pss, total)


def learn_names(events: Path, peaks: Peaks) -> None:
    """Which pid is whose."""
    for line in events.read_text().splitlines():
        if '"process_ready"' in line:
            event = json.loads(line)
            peaks.names[event["pid"]] = event["process"]


def disagreements(document: dict[str, Any], seen: list[Peaks]) -> list[str]:
    """A line for each figure, and those in which the two differ begin with an exclamation mark.

    The runs have to be one of each case: ``--repeat 1``.
    """
    lines = []
    ran = [result for result in document["results"] if result["ran"]]
    for result, peaks in zip(ran, seen, strict=True):
        run = result["runs"][0]
        for what, inside, outside in (
            ("server RSS", run["server_idle_rss"] + run["server_peak_rss"], peaks.of("server")),
            ("client RSS", run["client_idle_rss"] + run["client_peak_rss"], peaks.of("client")),
            ("all PSS", run["total_peak_pss"], peaks.total_pss),
        ):
            ratio = inside / outside
            sign = "  " if abs(ratio - 1) <= TOLERANCE else "! "
            figures = f"{inside / 2**20:9.1f} MiB inside, {outside / 2**20:9.1f} MiB outside"
            lines.append(f"{sign}{result['mode']:7} {what}: {figures}, ratio {ratio:.3f}")
    return lines


def main(arguments: list[str]) -> int:
    """Hold a bench against the outside sampler, and print what both saw."""
    with tempfile.TemporaryDirectory(dir=".") as name:
        folder = Path(name).absolute()
        out = folder / "bench.json"
        command = [sys.executable, "-m", "flstream", "bench", *arguments, "--json", str(out)]
        seen = watch(command, folder, folder / "stdout")
        print((folder / "stdout").read_text())
        lines = disagreements(json.loads(out.read_text()), seen)
    print("\n".join(lines))
    return any(line.startswith("!") for line in lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
