"""Make mistakes in a copy of the checkout, one at a time, and say which test finds each.

python tests/mutations/mutate.py [NUMBER]...
"""

import importlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

CHECKOUT = Path(__file__).parents[2]
sys.path.append(str(CHECKOUT / "tests" / "matrix"))
matrix_draw = importlib.import_module("matrix_draw")

PATIENCE = 900.0
"""Seconds after which tests count as stuck, which finds a mistake, too."""


class Mutation(NamedTuple):
    """Mistake in a file below flstream/, and the tests that find the mistake."""

    path: str
    tests: list[str]
    old: str
    new: str

    def applied(self, checkout: Path) -> str:
        """Return the text of a checkout's file with the mistake."""
        text = (checkout / "flstream" / self.path).read_text()
        assert text.count(self.old) == 1, f"{self.path} has {text.count(self.old)} of {self.old!r}"
        return text.replace(self.old, self.new)


def mutations() -> list[Mutation]:
    """Read the mistakes in the file beside this one."""
    read = []
    for block in Path(__file__).with_name("mutations.txt").read_text().split("\n\n")[1:]:
        head, *lines = block.strip("\n").split("\n")
        path, _, tests = head.partition(": ")
        old, new = ("\n".join(line[1:] for line in lines if line[0] == sign) for sign in "-+")
        read.append(Mutation(path, tests.split(), old, new))
    return read


def left_out(folder: str, names: list[str]) -> list[str]:
    """Names of a folder that are no part of the checkout: runs of its top, and what is hidden."""
    generated = ["__pycache__", *(["runs"] if Path(folder) == CHECKOUT else [])]
    return [name for name in names if name.startswith(".") or name in generated]


def finder(checkout: Path, tests: list[str]) -> str:
    """Run tests in a checkout until one fails; return its name, or nothing.

    A checkout in which they do not run at all has found nothing.
    """
    line = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider"]
    line += ["-m", "not nightly and not extras", *(f"tests/{name}" for name in tests)]
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


def main() -> int:
    """Print a row for each mistake, or those of some numbers; return 1 if one was not found."""
    wanted, missed = {*map(int, sys.argv[1:])}, 0
    with tempfile.TemporaryDirectory(prefix="flstream-mutations-") as folder:
        copy = Path(folder) / "checkout"
        shutil.copytree(CHECKOUT, copy, symlinks=True, ignore=left_out)
        for number, mutation in enumerate(mutations()):
            if wanted and number not in wanted:
                continue
            path = copy / "flstream" / mutation.path
            before = path.read_text()
            path.write_text(mutation.applied(copy))
            test = finder(copy, mutation.tests)
            path.write_text(before)
            missed += not test
            change = " ".join(mutation.new.split()) or "(gone)"
            print(f"{number} {mutation.path}: {change}: {test or 'NOT FOUND'}", flush=True)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
