"""The page on fewer bytes: its section is valid, and its figures are named as those of a run."""

import json
import re
from pathlib import Path

from flstream.job import load_job
from flstream.telemetry.events import Transfer

PAGE = (Path(__file__).parents[2] / "docs" / "fewer-bytes.md").read_text()
(HOCON,) = re.findall(r"^```hocon\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
(SUMMARY,) = re.findall(r"^```json\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
JOB = """
name = page, rounds = 1, clients { count = 2 }, train { script = client.py }
model { factory = "model:build" }
"""


def test_the_section_is_valid_and_is_the_default(tmp_path: Path) -> None:
    (tmp_path / "client.py").write_text("import flstream.client as flare\n")
    (tmp_path / "model.py").write_text("def build():\n    return {}\n")
    (tmp_path / "job.conf").write_text(JOB)
    default = load_job(tmp_path / "job.conf").streaming
    (tmp_path / "job.conf").write_text(f"{JOB}\n{HOCON}")
    assert load_job(tmp_path / "job.conf").streaming == default


def test_the_figures_are_those_of_a_transfer() -> None:
    shown = json.loads(f"{{{SUMMARY}}}")["transfer"]["down"]
    assert shown.keys() - {"..."} <= set(Transfer.__struct_fields__)
