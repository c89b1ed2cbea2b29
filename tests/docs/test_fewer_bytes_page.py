"""The page on fewer bytes: its section is valid, and its figures are named as those of a run."""

import json
import re
from pathlib import Path

from flstream.job import load_job
from flstream.job.codec_sections import BUILT_IN
from flstream.job.sections import StreamingSection
from flstream.telemetry.events import Transfer

PAGE = (Path(__file__).parents[2] / "docs" / "fewer-bytes.md").read_text()
REUSE, CODECS = re.findall(r"^```hocon\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
(SUMMARY,) = re.findall(r"^```json\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
JOB = """
name = page, rounds = 1, clients { count = 2 }, train { script = client.py }
model { factory = "model:build" }
"""


def streaming(folder: Path, text: str) -> StreamingSection:
    (folder / "client.py").write_text("import flstream.client as flare\n")
    (folder / "model.py").write_text("def build():\n    return {}\n")
    (folder / "job.conf").write_text(f"{JOB}\n{text}")
    return load_job(folder / "job.conf").streaming


def test_the_section_is_valid_and_is_the_default(tmp_path: Path) -> None:
    assert streaming(tmp_path, REUSE) == streaming(tmp_path, "")


def test_the_codecs_are_valid_and_all_are_named(tmp_path: Path) -> None:
    codecs = streaming(tmp_path, CODECS).codecs
    assert [each.type for each in codecs.up] == ["topk", "shuffle", "zstd"]
    assert [each.type for each in codecs.down] == ["delta", "shuffle", "zstd"]
    assert all(re.search(f"^\\| `{name}[ `]", PAGE, flags=re.MULTILINE) for name in BUILT_IN)


def test_the_figures_are_those_of_a_transfer() -> None:
    shown = json.loads(f"{{{SUMMARY}}}")["transfer"]["down"]
    assert shown.keys() - {"..."} <= set(Transfer.__struct_fields__)
