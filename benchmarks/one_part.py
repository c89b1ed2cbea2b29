"""Make the rows of one part of another checkout's benchmark script, for ``against.py``.

    python benchmarks/one_part.py CHECKOUT SCRIPT FILE [PART SCALE]

It is run by that checkout's interpreter, imports its script and its package, and relies on nothing
but this: the script has a list PARTS of functions ``(folder, scale)`` that make rows, which are
named tuples. Without a part, the names of the parts are written.
"""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
from pathlib import Path


def main(checkout: Path, script: str, file: Path, part: str = "", scale: str = "1") -> None:
    """Write the names of a script's parts, or the rows of one, as JSON."""
    # Instead of the folder that this file is in, whose modules have the same names.
    sys.path[0] = str(checkout / "benchmarks")
    import flstream

    if not Path(flstream.__file__).is_relative_to(checkout):
        raise SystemExit(f"the interpreter imports {flstream.__file__}, not that of {checkout}")
    parts = {each.__name__: each for each in importlib.import_module(script).PARTS}
    if not part:
        file.write_text(json.dumps(list(parts)))
        return
    with tempfile.TemporaryDirectory(prefix="flstream-bench-", dir=".") as folder:
        rows = [row._asdict() for row in parts[part](Path(folder), int(scale))]
    file.write_text(json.dumps(rows))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), *sys.argv[4:])
