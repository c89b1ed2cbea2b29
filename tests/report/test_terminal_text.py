"""Text from files and scripts is shown, never obeyed, and cut where a terminal ends."""

import sys
from contextlib import redirect_stdout

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from flstream.report.console import make_console
from flstream.report.text import elide, format_clock, format_metric
from flstream.text import printable


@given(st.text(), st.integers(0, 40))
def test_elided_text_fits(text, width):
    assert cell_len(elide(printable(text), width)) <= width


def test_both_ends_of_a_long_name_stay_and_metrics_are_short():
    assert elide("model.layers.31.mlp.down_proj.weight", 20) == "model.la...oj.weight"
    texts = {0.0: "0.0000", 0.97314: "0.9731", -12.4: "-12.4000", 0.0000321: "3.21e-05"}
    assert {value: format_metric(value) for value in texts} == texts
    assert [format_metric(value) for value in (None, float("nan"))] == ["-", "nan"]
    assert [format_clock(n) for n in (3_725.9, -1)] == ["01:02:05", "00:00:00"]


def test_a_console_stays_with_its_stream_while_imports_redirect_stdout(capfd):
    console = make_console()
    with redirect_stdout(sys.stderr):  # as import_once does, on any thread
        console.out("round 1 of 2")
    assert capfd.readouterr() == ("round 1 of 2\n", "")
