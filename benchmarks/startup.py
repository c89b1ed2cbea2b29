"""How long `flstream --help` takes, beside an interpreter that does nothing.

python benchmarks/startup.py [REPEAT]
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time


def seconds(*command: str) -> float:
    """How long a command takes as a whole process."""
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def main(repeat: int) -> None:
    """Measure, alternating, and print medians."""
    nothing, help_ = [], []
    for _ in range(repeat + 1):
        nothing.append(seconds(sys.executable, "-c", "pass"))
        help_.append(seconds(sys.executable, "-m", "flstream", "--help"))
    print(
        f"start-up, medians of {repeat}:\n"
        f"  python -c pass       {statistics.median(nothing[1:]):.3f} s\n"
        f"  flstream --help      {statistics.median(help_[1:]):.3f} s"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
