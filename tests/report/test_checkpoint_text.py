"""Whatever is said about a checkpoint stays within a terminal's width, and names stay harmless."""

import io
from pathlib import Path

import pytest
import torch
from msgspec import structs
from rich.cells import cell_len
from runs import round_finished

from flstream.errors import UsageError
from flstream.inspection.examine import Request, examine
from flstream.inspection.site_bodies import SiteRequest, examine_site
from flstream.model.checkpoint import write_checkpoint
from flstream.model.memory import MemoryBody
from flstream.report.checkpoint import print_findings, print_site
from flstream.report.console import make_console
from flstream.telemetry.events import (
    AnyEvent,
    ModelReady,
    ModelReceived,
    RunStarted,
    Transfer,
    decode_event,
    encode_lines,
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a run directory of many rounds, whose model has awkward names."""
    names = ["a." * 60 + "weight", "wide." + "\u8a08" * 90, "[red]\x1b[31m.\nline", "plain.bias"]
    state = {name: torch.full((2, 3), float("nan") if "red" in name else 1e-9) for name in names}
    state["counts"] = torch.tensor([-(2**63), 2**63 - 1])
    state["phase"] = torch.tensor([1 + 2j])
    events: list[AnyEvent] = []
    for number in range(30):
        path = tmp_path / "checkpoints" / f"round-{number:04d}.safetensors"
        state["plain.bias"] = torch.full((2, 3), float(number))
        digest = write_checkpoint(path, MemoryBody.of(state))
        if number:
            scores = {"accuracy": 0.5, "a metric of a long name": 1.0, "another one": 2.0}
            finished = round_finished(number, 1.0)
            events.append(structs.replace(finished, digest=digest, metrics=scores))
        else:
            events.append(ModelReady(bytes=160, tensors=6, digest=digest))
    (tmp_path / "events.jsonl").write_bytes(encode_lines(events))
    return tmp_path


@pytest.mark.parametrize("width", [80, 200])
@pytest.mark.parametrize("tree", [False, True])
def test_every_line_fits_the_terminal(
    run: Path, width: int, tree: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.chdir(run)
    other = Path("checkpoints") / "round-0000.safetensors"
    file = Terminal()
    request = Request(Path(), tree=tree, stats=True, verify=True, diff=other)
    print_findings(make_console(file=file, width=width), examine(request))
    text = file.getvalue()
    assert max(map(cell_len, text.splitlines())) <= width
    assert "\x1b" not in text
    for words in ("unfinished after 29 rounds", "the latest checkpoint:", "1 changed"):
        assert words in text
    assert text.count("verified ") == 30


def test_through_a_pipe_everything_is_whole(run: Path) -> None:
    file = io.StringIO()
    findings = examine(Request(run, stats=True, verify=True))
    print_findings(make_console(file=file), findings)
    assert findings.run is not None
    for whole in ("a." * 60 + "weight", findings.run.checkpoints[29].digest):
        assert file.getvalue().count(str(whole)) == 2


def test_what_a_site_received_fits_the_terminal_and_mistakes_are_named(run: Path) -> None:
    name = "site \x1b[31m of a long name that takes much of a line"
    start = RunStarted(
        job="j", seed=1, rounds=30, mode="pull", chunk_size=16, clients=1, names=[name]
    )
    received = ModelReceived(
        round=1, effect=1, task="train", sites=[name], digest="0123456789abcdef" * 2, made=0,
        origin="server", tags=["pulled", "delta", "shuffle", "zstd", "reused"], size=3 << 30,
        cost=Transfer(bytes=5 << 20, reused=1 << 30, encoded=2 << 30),
    )  # fmt: skip
    first, *rest = map(decode_event, (run / "events.jsonl").read_bytes().splitlines())
    (run / "events.jsonl").write_bytes(encode_lines([start, first, received, *rest]))
    file = io.StringIO()
    print_site(make_console(file=file, width=80), examine_site(SiteRequest(run, name)))
    assert "received 1 model: 5 MiB moved" in file.getvalue()
    assert "\x1b" not in file.getvalue()
    with pytest.raises(UsageError, match=r"no site .c.; it has site"):
        examine_site(SiteRequest(run, "c"))
    with pytest.raises(UsageError, match="received or sent in round 99"):
        examine_site(SiteRequest(run, name, 99))
