"""Whatever is said about a checkpoint stays within a terminal's width, and names stay harmless."""

import io
from pathlib import Path

import pytest
import torch
from journal_support import record
from msgspec import structs
from rich.cells import cell_len
from runs import round_finished

from flstream.inspection.examine import examine
from flstream.model.checkpoint import write_checkpoint
from flstream.model.memory import MemoryBody
from flstream.report.checkpoint import print_findings
from flstream.report.console import make_console
from flstream.telemetry.events import ModelReady, ModelRecord, encode_lines


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def run(tmp_path):
    """A run directory of many rounds, whose model has awkward names."""
    names = ["a." * 60 + "weight", "wide." + "\u8a08" * 90, "[red]\x1b[31m.\nline", "plain.bias"]
    state = {name: torch.full((2, 3), float("nan") if "red" in name else 1e-9) for name in names}
    state["counts"] = torch.tensor([-(2**63), 2**63 - 1])
    state["phase"] = torch.tensor([1 + 2j])
    scores = {"accuracy": 0.5, "a metric of a long name": 1.0, "another one": 2.0}
    events = []
    for number in range(30):
        path = tmp_path / "checkpoints" / f"round-{number:04d}.safetensors"
        state["plain.bias"] = torch.full((2, 3), float(number))
        digest = write_checkpoint(path, MemoryBody.of(state))
        finished = structs.replace(round_finished(number, 1.0), digest=digest, metrics=scores)
        fold = record(number, "fold", number, None, model=ModelRecord(number, number, 0, digest))
        begin = ModelReady(bytes=160, tensors=6, digest=digest)
        events += [fold, finished] if number else [begin]
    (tmp_path / "events.jsonl").write_bytes(encode_lines(events))
    return tmp_path


@pytest.mark.parametrize("width", [80, 200])
def test_every_line_fits_the_terminal(run, width, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.chdir(run)
    other = Path("checkpoints") / "round-0000.safetensors"
    file = Terminal()
    findings = examine(Path(), stats=True, verify=True, diff=other)
    print_findings(make_console(file=file, width=width), findings)
    text = file.getvalue()
    assert max(map(cell_len, text.splitlines())) <= width
    assert "\x1b" not in text
    for words in ("unfinished after 29 rounds", "the latest checkpoint:", "1 changed"):
        assert words in text
    assert text.count("verified ") == 30


def test_through_a_pipe_everything_is_whole(run):
    file = io.StringIO()
    findings = examine(run, stats=True, verify=True)
    print_findings(make_console(file=file), findings)
    assert findings.run
    for whole in ("a." * 60 + "weight", findings.run.checkpoints[29].digest):
        assert file.getvalue().count(str(whole)) == 2
