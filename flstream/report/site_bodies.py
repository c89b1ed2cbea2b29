"""Text of ``flstream inspect RUN``: what sites received and sent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flstream.inspection.site_bodies import KeyedBody, SiteBodies
from flstream.report.columns import GAP, column_lines, section, shortened
from flstream.report.text import counted
from flstream.runs.body_records import BodyRecord, TensorKey
from flstream.text import printable
from flstream.units import format_bytes

_DIGEST_WIDTH = 8
_FORM_WIDTH = 28
_PEER_WIDTH = 12
_TAGS_WIDTH = 42
# What goes without saying, where there is more to say of a form.
_USUAL = ("pulled", "FULL")


def body_lines(bodies: Iterable[BodyRecord], width: int | None) -> list[str]:
    """Return the table of what all sites received and sent; nothing without records.

    Args:
        bodies: Records of the bodies, of which many are read one by one.
        width: Columns of the terminal; None if the output is not a terminal.
    """
    rows = [
        ("...", "", "", "", "", "")
        if body is None
        else (printable(body.site), str(body.round), *_cells(body))
        for body in shortened(bodies)
    ]
    head = ("site", "round", "body", "form", "moved", "not sent")
    room = None if width is None else width - len(GAP)
    return column_lines(head, rows, room, left=4, limits={3: _FORM_WIDTH})


def site_lines(found: SiteBodies, width: int | None) -> list[str]:
    """Return the lines about one site: its bodies, and the tensors of a round's.

    Args:
        found: What the site received and sent.
        width: Columns of the terminal; None if the output is not a terminal.
    """
    name = printable(found.site)
    when = "" if found.round is None else f" in round {found.round}"
    lines = [*section(f"{name}{when}", _total_lines(found.bodies), width)[1:], ""]
    rows = [
        ("...", "", "", "", "", "")
        if body is None
        else (str(body.round), *_cells(body, printable(_peer(body))))
        for body in shortened(found.bodies)
    ]
    head = ("round", "body", "from or to", "form", "moved", "not sent")
    lines += column_lines(head, rows, width, left=4, limits={2: _PEER_WIDTH, 3: _FORM_WIDTH})
    for each in found.keyed:
        lines += section(_title(each), _key_lines(each.keys, width), width)
    return lines + section("metrics", _key_lines(found.metrics, width), width)


def _cells(body: BodyRecord, *after_name: str) -> tuple[str, ...]:
    what = "update"
    if body.direction == "received":
        verb = "model" if body.task == "train" else "score"
        what = f"{verb} {body.model[:_DIGEST_WIDTH]}"
    elif body.task == "submit_model":
        what = "submitted"
    moved, spared = format_bytes(body.bytes), format_bytes(body.not_sent)
    return what, *after_name, _form(body), moved, spared


def _form(body: BodyRecord) -> str:
    """The form in few words, without what goes without saying."""
    tags = [tag for tag in body.tags if tag not in _USUAL] or list(body.tags[:1])
    tags += [f"with {name}" for name in body.beside]
    if body.sites > 1:
        tags.append(f"for {body.sites} sites")
    return printable(" ".join(tags))


def _peer(body: BodyRecord) -> str:
    return body.origin if body.direction == "received" else body.receiver


def _total_lines(bodies: Sequence[BodyRecord]) -> list[str]:
    """Sums of the bodies in each direction."""
    lines = []
    for direction in ("received", "sent"):
        ours = [each for each in bodies if each.direction == direction]
        noun = "model" if direction == "received" else "update"
        moved = format_bytes(sum(each.bytes for each in ours))
        spared = format_bytes(sum(each.not_sent for each in ours))
        shared = ", some for several sites at once" if any(e.sites > 1 for e in ours) else ""
        lines.append(
            f"{direction} {counted(len(ours), noun)}: {moved} moved, {spared} not sent{shared}"
        )
    return lines


def _title(keyed: KeyedBody) -> str:
    body = keyed.body
    tensors = counted(len(keyed.keys), "tensor")
    if body.direction == "received":
        what = f"model {body.model[:_DIGEST_WIDTH]} to {body.task}"
        return f"{what}, from {printable(body.origin)}: {tensors}"
    what = "model of its own" if body.task == "submit_model" else "update"
    return f"{what} to {printable(body.receiver)}: {tensors}"


def _key_lines(keys: Sequence[TensorKey], width: int | None) -> list[str]:
    rows = [
        ("...", "", "", "", "")
        if key is None
        else (
            printable(key.tensor),
            printable(key.origin),
            str(key.round),
            "yes" if key.report else "no",
            printable(" ".join(key.tags)),
        )
        for key in shortened(keys)
    ]
    head = ("tensor", "origin", "round", "report", "tags")
    room = None if width is None else width - len(GAP)
    return column_lines(head, rows, room, left=5, limits={1: _PEER_WIDTH, 4: _TAGS_WIDTH})
