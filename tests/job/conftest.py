"""A folder with a small, correct job to make mistakes in."""

from collections.abc import Callable
from pathlib import Path

import pytest

GOOD = """
name = digits
rounds = 10
clients { count = 8 }
model { factory = "model:build" }
train { script = client.py }
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a model and a training script."""
    (tmp_path / "model.py").write_text("import torch\n\ndef build(size=1):\n    ...\n")
    (tmp_path / "client.py").write_text("import flstream.client as flare\n")
    return tmp_path


@pytest.fixture
def write(folder: Path) -> Callable[..., Path]:
    """Return a function that writes a job file: the correct job, then the text given."""

    def write(text: str = "", base: str = GOOD) -> Path:
        path = folder / "job.conf"
        path.write_text(base + text, encoding="utf-8")
        return path

    return write
