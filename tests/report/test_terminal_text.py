"""Text from files and scripts is shown, never obeyed, and cut where a terminal ends."""

import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from flstream.inspection.examine import Findings
from flstream.inspection.overview import inspect_checkpoint
from flstream.model.checkpoint import FileSink
from flstream.model.layout import Layout
from flstream.report.checkpoint import print_findings
from flstream.report.console import make_console
from flstream.report.text import elide, format_metric, pad
from flstream.text import printable


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@given(st.text())
def test_what_is_printable_cannot_act_on_a_terminal(text: str) -> None:
    assert printable(text).isprintable()


@given(st.text(), st.integers(0, 40))
def test_elided_text_fits_and_padded_text_fills(text: str, width: int) -> None:
    assert cell_len(elide(printable(text), width)) <= width
    assert cell_len(pad(printable(text), width)) == width


def test_both_ends_of_a_long_name_stay() -> None:
    assert elide("model.layers.31.mlp.down_proj.weight", 20) == "model.la...oj.weight"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0.0, "0.0000"),
        (0.97314, "0.9731"),
        (-12.4, "-12.4000"),
        (0.0000321, "3.21e-05"),
        (123456.0, "1.23e+05"),
        (float("nan"), "nan"),
    ],
)
def test_metrics_are_short(value: float | None, text: str) -> None:
    assert format_metric(value) == text


@pytest.mark.parametrize("width", [80, 200])
def test_on_a_terminal_a_checkpoint_is_listed_within_its_width(
    tmp_path: Path, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    path = tmp_path / "model.safetensors"
    names = ["short", "x" * 300, "wide-" + "\u8a08" * 90, "[red]\x1b[31m"]
    layout = Layout.of([(name, "F32", (1,) * 40 if name == "short" else (2,)) for name in names])
    with FileSink(path, layout, {"note": "n" * 500}) as sink:
        sink.finish()
    file = Terminal()
    console = make_console(file=file, width=width)
    print_findings(console, Findings(inspect_checkpoint(path)))
    lines = file.getvalue().splitlines()
    assert max(map(cell_len, lines)) <= width
    assert "\x1b" not in file.getvalue()
    assert sum("F32" in line for line in lines) == 4
    assert "4 tensors, 7 parameters, 28 B, header of" in file.getvalue()


@given(st.dictionaries(st.text(min_size=1), st.text(), max_size=3))
def test_the_document_of_a_checkpoint_survives_json(
    tmp_path: Path, metadata: dict[str, str]
) -> None:
    path = tmp_path / "model.safetensors"
    with FileSink(path, Layout.of([("w", "F16", (3, 2))]), metadata) as sink:
        sink.finish()
    document = inspect_checkpoint(path).document()
    assert json.loads(json.dumps(document)) == document
    assert document["metadata"] == metadata
