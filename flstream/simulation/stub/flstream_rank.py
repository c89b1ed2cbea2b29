"""Start of a rank of ``train.command``: ``flstream_rank.py script.py arguments``.

A launcher runs it as a file, so what is imported here is found as any script finds it.
"""

import importlib.util
import sys
from pathlib import Path


def _start() -> int:
    stub = Path(__file__).resolve().parent
    sys.path[:] = [path for path in sys.path if not path or Path(path).resolve() != stub]
    if importlib.util.find_spec("flstream") is None:
        sys.path.append(str(stub.parents[2]))  # flstream itself runs from there
    from flstream.simulation.rank_process import rank_main

    return rank_main(sys.argv[2:])


# Processes that the script starts, but does not fork, may import this file.
if __name__ == "__main__":
    sys.exit(_start())
