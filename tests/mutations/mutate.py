"""Make mistakes in a copy of the checkout, one at a time, and say which test finds each.

    python tests/mutations/mutate.py [--from 0] [--to 99] [--whole]

With --whole, a mistake that the tests named beside it do not find is tried on all of `make test`.
"""

import argparse
import importlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from mutations import MUTATIONS, Mutation

CHECKOUT = Path(__file__).parents[2]
sys.path.append(str(CHECKOUT / "tests" / "matrix"))
matrix_draw = importlib.import_module("matrix_draw")

PATIENCE = 900.0
"""Seconds after which tests count as stuck, which finds a mistake, too."""


def left_out(folder: str, names: list[str]) -> list[str]:
    """Names of a folder that are no part of the checkout: runs of its top, and what is hidden."""
    made = ["__pycache__", *(["runs"] if Path(folder) == CHECKOUT else [])]
    return [name for name in names if name.startswith(".") or name in made]


def tested(checkout: Path, tests: list[str]) -> str:
    """Run tests in a checkout until one fails; return its name, or nothing.

    A checkout in which they do not run at all has found nothing.
    """
    line = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider"]
    line += ["-m", "not nightly and not extras", *tests]
    # The same cases of the matrix for each mistake: by itself, the draw depends on the code.
    environment = {matrix_draw.DRAW: matrix_draw.draw(), **os.environ, "PYTHONPATH": str(checkout)}
    try:
        done = subprocess.run(
            line, cwd=checkout, env=environment, capture_output=True, text=True, timeout=PATIENCE
        )
    except subprocess.TimeoutExpired:
        return "a test that hangs"
    failed = re.search(r"^(?:FAILED|ERROR) (.*?)(?: - .*)?$", done.stdout, re.MULTILINE)
    if failed is None and done.returncode != 0:
        print("the tests did not run:", done.stdout, done.stderr, sep="\n", file=sys.stderr)
    return failed[1] if failed else ""


def applied(mutation: Mutation, checkout: Path) -> str:
    """Make a mistake in a checkout; return the text of the file before."""
    path = checkout / "flstream" / mutation.path
    text = path.read_text()
    if text.count(mutation.old) != 1:
        raise SystemExit(f"{mutation.path} has {text.count(mutation.old)} times {mutation.old!r}")
    path.write_text(text.replace(mutation.old, mutation.new))
    return text


def main() -> int:
    """Print a row for each mistake; the exit status is 1 if one was not found."""
    parser = argparse.ArgumentParser(description="Mutate, and test.")
    parser.add_argument("--from", type=int, default=0, dest="first")
    parser.add_argument("--to", type=int, default=len(MUTATIONS))
    parser.add_argument("--whole", action="store_true")
    options = parser.parse_args()
    missed = 0
    with tempfile.TemporaryDirectory(prefix="flstream-mutations-") as folder:
        copy = Path(folder) / "checkout"
        shutil.copytree(CHECKOUT, copy, symlinks=True, ignore=left_out)
        for number, mutation in enumerate(MUTATIONS[options.first : options.to], options.first):
            before = applied(mutation, copy)
            finder = tested(copy, [f"tests/{each}" for each in mutation.tests.split()])
            if not finder and options.whole:
                finder = tested(copy, [])
            (copy / "flstream" / mutation.path).write_text(before)
            missed += not finder
            new = " ".join(mutation.new.split()) or "(gone)"
            print(f"{number} {mutation.path}: {new}: {finder or 'NOT FOUND'}", flush=True)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
