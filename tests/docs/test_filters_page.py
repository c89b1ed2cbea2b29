"""The page on filters: its example of a filter runs in a job, and its sections are valid."""

import re
from pathlib import Path

import numpy as np

from flstream.filters.block import Passage
from flstream.filters.chain import filtered
from flstream.job import load_job
from flstream.job.filter_sections import BUILT_IN
from flstream.model.body import Scratch
from flstream.model.memory import MemoryBody

PAGE = (Path(__file__).parents[2] / "docs" / "filters.md").read_text()
(HOCON,) = re.findall(r"^```hocon\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
(OWN,) = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
(LINE,) = re.findall(r"^    (filters \{ up = .*)$", PAGE, flags=re.MULTILINE)
JOB = """
name = page, rounds = 1, clients { count = 2 }, train { script = client.py }
model { factory = "model:build" }
"""


def loaded(folder, text):
    (folder / "client.py").write_text("import flstream.client as flare\n")
    (folder / "model.py").write_text("def build():\n    return {}\n")
    (folder / "signs.py").write_text(OWN)
    (folder / "job.conf").write_text(f"{JOB}\n{text}")
    return load_job(folder / "job.conf")


def test_the_example_of_a_job_file_is_sound(tmp_path):
    names = [each.type for each in loaded(tmp_path, HOCON).filters.up]
    assert names == ["exclude_vars", "percentile_privacy", "gaussian"]


def test_the_filter_of_ones_own_is_short_and_does_what_it_says(tmp_path):
    assert len(OWN.splitlines()) <= 16
    specs = loaded(tmp_path, LINE).filters.up
    change = np.where(np.arange(40_000) % 3 == 0, 1.5, -2.0)
    body = MemoryBody.of({"w": change, "w.bias": np.array([0.5])})
    source = filtered(body, specs, Passage("site-1", 1, "up", 3))
    numbers = np.frombuffer(b"".join(source.views(0, body.layout.nbytes, Scratch())))
    assert numbers[-1] == 0.5
    assert set(np.abs(numbers[:-1])) == {0.001}
    flipped = (np.sign(numbers[:-1]) != np.sign(change)).mean()
    assert abs(flipped - 0.2) < 4 * np.sqrt(0.2 * 0.8 / 40_000)


def test_the_table_has_every_built_in_filter():
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE, flags=re.MULTILINE)) == set(BUILT_IN)
