"""Results that are made once a session, whichever processes of pytest-xdist ask for them."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return a folder that was filled once for all processes of a session.

    Args:
        factory: Pytest's fixture ``tmp_path_factory``.
        name: Name of the folder, which no other result of the session has.
        make: Fills the empty folder, in the first process that asks for it.
    """
    base = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent  # the session's, in which each process has a folder of its own
    folder, done = base / f"{name}.shared", base / f"{name}.done"
    with FileLock(base / f"{name}.lock"):
        if not done.exists():
            folder.mkdir()
            make(folder)
            done.touch()
    return folder
