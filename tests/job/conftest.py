"""A folder with a small, correct job to make mistakes in."""

import pytest

from flstream.job import JobError, load_job, render_job

GOOD = """
name = digits
rounds = 10
clients { count = 8 }
model { factory = "model:build" }
train { script = client.py }
"""


@pytest.fixture
def folder(tmp_path):
    """A folder with a model and a training script."""
    (tmp_path / "model.py").write_text("import torch\n\ndef build(size=1):\n    ...\n")
    (tmp_path / "client.py").write_text("import flstream.client as flare\n")
    return tmp_path


@pytest.fixture
def write(folder):
    """Write a job file: the correct job, then the text given."""

    def write(text="", base=GOOD):
        path = folder / "job.conf"
        path.write_text(base + text, encoding="utf-8")
        return path

    return write


@pytest.fixture
def load(write):
    """Load the correct job with a text after it, and with overrides."""
    return lambda text="", *overrides, base=GOOD: load_job(write(text, base), overrides)


@pytest.fixture
def mistakes(load):
    """The mistakes of such a job."""

    def mistakes(text="", *overrides, base=GOOD):
        with pytest.raises(JobError) as caught:
            load(text, *overrides, base=base)
        return list(caught.value.problems)

    return mistakes


@pytest.fixture
def reloaded(folder):
    """Write a job out as resolved, and load that."""

    def reloaded(job):
        (folder / "resolved.conf").write_text(render_job(job), encoding="utf-8")
        return load_job(folder / "resolved.conf")

    return reloaded
