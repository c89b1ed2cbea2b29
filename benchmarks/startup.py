"""Measure start-up, compared with an interpreter that does nothing and with the import of torch.

    python benchmarks/startup.py [REPEAT]

Absolute seconds mean little: the same version took 2.4 s to its first training step on one day and
6.9 s on another, on which `import torch` took three times as long, too. So what is held to a limit
is the multiple of that, measured in turn with it.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

from rows import Row, print_table, scratch_folder
from simulating import seconds_to_first_step


def seconds(*command: str) -> float:
    """Return the seconds that a command takes as a whole process."""
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def main(repeat: int) -> None:
    """Measure all four in turn, ``repeat`` times each, and print medians."""
    nothing, help_, torch, step = [], [], [], []
    with scratch_folder() as folder:
        for _ in range(repeat + 1):
            nothing.append(seconds(sys.executable, "-c", "pass"))
            help_.append(seconds(sys.executable, "-m", "flstream", "--help"))
            torch.append(seconds(sys.executable, "-c", "import torch"))
            step.append(seconds_to_first_step(Path(folder), "clients.count=4"))
    # The first of each is left out, since it fills the disk's cache.
    bare, helped, imported, begun = (
        statistics.median(each[1:]) for each in (nothing, help_, torch, step)
    )
    print(f"Medians of {repeat}, of whole processes.")
    print_table(
        [
            Row("flstream --help", f"{helped:.3f} s", f"{bare:.3f} s nothing", helped / bare),
            Row(
                "command to first training step, 4 clients",
                f"{begun:.2f} s",
                f"{imported:.2f} s import torch",
                begun / imported,
                most=3.0,
            ),
        ]
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
