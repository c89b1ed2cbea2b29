"""Rows of the CSV files that a job file names."""

import csv
from collections.abc import Iterator
from pathlib import Path


def csv_rows(path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the cells of each row by column, after a text that names the file and the line.

    Args:
        path: Path of the file; its first line names the columns.

    Raises:
        ValueError: There is a mistake in it; the message names the file, and the line.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            head = [cell.strip() for cell in next(reader, [])]
            if len(set(head)) < len(head) or not head:
                columns = ", ".join(head) or "missing"
                raise ValueError(f"{path}, line 1: the columns are {columns}; name each once")
            for row in reader:
                where = f"{path}, line {reader.line_num}:"
                cells = [cell.strip() for cell in row]
                if any(cells) and len(cells) != len(head):
                    raise ValueError(f"{where} {len(cells)} columns instead of {len(head)}")
                if any(cells):
                    yield where, dict(zip(head, cells, strict=True))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise ValueError(f"{path} cannot be read: {reason}") from error
