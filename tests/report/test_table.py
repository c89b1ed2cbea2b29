"""One table in plain text, on a terminal and in HTML."""

from io import StringIO

import pytest
from rich.cells import cell_len
from rich.console import Console

from flstream.report.page import environment
from flstream.report.table import Column, Gap, Link, Row, Table, ends

COLUMNS = [
    Column("site", "name"),
    Column("state", "state", 1),
    Column("down", "bytes", 1),
    Column("loss", "metric", 2),
    Column("train", "seconds", 3),
    Column("speed", "rate", 4),
    Column("why", "text", 5),
]
WHY = "the training code raised ValueError in its third batch, which is its own mistake"
WIDE = "\u754c"
ROWS = [
    Row(["site-1", "ready", 3 << 20, 0.25, 1234.5, 2e6, None], "best"),
    Row(["hospital-of-" + 40 * "x" + "-1", "failed", 17, None, 0.5, 0.0, WHY], "bad"),
    Row([WIDE * 30, "training", 0, 1e9, 0.0, None, "\x1b[31mred"]),
]


def in_html(table: Table) -> str:
    return str(environment().get_template("run.html").module.show(table))


def printed(table: Table, width: int) -> list[str]:
    out = StringIO()
    Console(file=out, width=width, markup=False, emoji=False).print(table)
    return out.getvalue().splitlines()


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_nothing_is_cut_without_an_ellipsis(width):
    table = Table(COLUMNS, ROWS)
    whole, lines = table.lines(), table.lines(width)
    assert max(map(cell_len, lines)) <= width
    left_out = " ".join(lines[4:]).replace("  ", " ")
    for column in COLUMNS[1:]:
        assert (column.head in lines[0].split()) != (f" {column.head}" in left_out)
    known = {word for line in whole for word in line.split()}
    for line in lines[:4]:
        # A wide character may leave a blank at the ellipsis.
        assert all(word in known or "..." in word or {*word} == {WIDE} for word in line.split())
    assert printed(table, width) == lines


def test_a_pipe_gets_whole_cells():
    lines = Table(COLUMNS, ROWS).lines()
    assert WHY in lines[2]
    assert "1,234.50" in lines[1]
    assert "3 MiB" in lines[1]
    assert lines[1].startswith("site-1 *")
    assert "\x1b" not in "".join(lines)
    assert "\\x1b[31mred" in lines[3]


def test_columns_of_the_highest_rank_are_left_out_first():
    assert Table(COLUMNS, ROWS[:1]).lines(44)[-1] == "not shown at this width: speed, why"


def test_a_long_table_shows_its_ends_and_its_best_row():
    rows = (Row([number], "best" if number == 400 else "") for number in range(1000))
    shown = ends(rows, first=2, last=3, most=8)
    numbers = [row.rows if isinstance(row, Gap) else row.cells[0] for row in shown]
    assert numbers == [0, 1, 398, 400, 596, 997, 998, 999]
    table = Table([Column("round", "count")], shown)
    assert "... 596 rows left out" in table.lines()
    assert "... 596 rows left out" in in_html(table)
    assert ends(Row([number]) for number in range(8)) == [Row([number]) for number in range(8)]


def test_html_escapes_names_and_links_pages():
    columns = [Column("<run>", "link"), Column("part", "share"), Column("status", "state")]
    html = in_html(Table(columns, [Row([Link("<b>", 'a"b.html'), 0.25, "finished"], "best")]))
    assert "<b>" not in html.replace('<b style="width:25.0%">', "")
    assert '<a href="a&#34;b.html">&lt;b&gt;</a>' in html
    assert '<span class="status finished">' in html
    assert "<tr class=best>" in html
