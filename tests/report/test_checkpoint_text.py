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
    SentUpdate,
    Transfer,
    UpdatesReceived,
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
    request = Request(Path(), tree=tree, stats=True, verify=True, diff=other)
    file = Terminal()
    print_findings(make_console(file=file, width=width), examine(request))
    text = file.getvalue()
    assert max(map(cell_len, text.splitlines())) <= width
    assert "\x1b" not in text
    assert "unfinished after 29 rounds" in text
    assert sum(line.startswith("...") for line in text.splitlines()) == 1
    assert "the latest checkpoint:" in text
    assert "1 changed" in text
    assert text.count("verified ") == 30


def test_through_a_pipe_everything_is_whole(run: Path) -> None:
    file = io.StringIO()
    findings = examine(Request(run, stats=True, verify=True))
    print_findings(make_console(file=file), findings)
    text = file.getvalue()
    assert text.count("a." * 60 + "weight") == 2
    digest = findings.run.checkpoints[29].digest if findings.run else ""
    assert len(digest) == 32
    assert text.count(digest) == 2


def received(number: int, site: str) -> AnyEvent:
    return ModelReceived(
        round=number,
        effect=number,
        task="train",
        sites=[site],
        digest="0123456789abcdef" * 2,
        made=number - 1,
        origin="server",
        tags=["pulled", "delta", "shuffle", "zstd", "reused"],
        size=3 << 30,
        cost=Transfer(bytes=5 << 20, reused=1 << 30, encoded=2 << 30),
    )


def sent(number: int, site: str) -> AnyEvent:
    return UpdatesReceived(
        round=number,
        effect=number,
        task="train",
        base="0123456789abcdef" * 2,
        receiver="server",
        tags=["pulled", "FULL", "int8"],
        updates={site: SentUpdate(3 << 30, 800 << 20)},
    )


@pytest.fixture
def exchanges(run: Path) -> Path:
    """A run whose journal has records of thirty rounds for sites with awkward names."""
    names = ["site \x1b[31m of a long name that takes much of a line", "b"]
    start = RunStarted(
        job="j", seed=1, rounds=30, mode="pull", chunk_size=16, clients=2, names=names
    )
    lines = (run / "events.jsonl").read_bytes().splitlines()
    events: list[list[AnyEvent]] = [[start]]
    events += [
        [each for name in names for each in (received(n, name), sent(n, name))]
        for n in range(1, 31)
    ]
    kept = zip(events, map(decode_event, lines), strict=False)
    (run / "events.jsonl").write_bytes(
        encode_lines(event for group, line in kept for event in [*group, line])
    )
    return run


@pytest.mark.parametrize("width", [80, 200])
def test_what_sites_received_fits_the_terminal_and_is_shortened(
    exchanges: Path, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    file = Terminal()
    console = make_console(file=file, width=width)
    print_findings(console, examine(Request(exchanges)))
    print_site(console, examine_site(SiteRequest(exchanges, "b")))
    text = file.getvalue()
    assert max(map(cell_len, text.splitlines())) <= width
    assert "\x1b" not in text
    table = text.partition("what sites received and sent\n")[2].partition("\n\n")[0].splitlines()
    assert [line.split()[0] for line in table].count("...") == 1
    rows = [line for line in table if " MiB" in line or " GiB" in line]
    assert len(rows) == 5 + 12
    text_of_rows = " ".join(" ".join(table).split())
    assert text_of_rows.count("delta shuffle zstd reused") >= 5
    assert all("update" in line for line in rows if "int8" in line)
    assert "received 29 models: 145 MiB moved" in text


def test_a_site_that_nobody_knows_and_a_round_without_it_are_named(exchanges: Path) -> None:
    with pytest.raises(UsageError, match=r"no site .c.; it has site .* b$"):
        examine_site(SiteRequest(exchanges, "c"))
    with pytest.raises(UsageError, match="nothing of what b received or sent in round 99"):
        examine_site(SiteRequest(exchanges, "b", 99))
