"""The emulated links of a job's sites in one line."""

from __future__ import annotations

from collections.abc import Callable, Collection

from flstream.telemetry.events import LinkFacts
from flstream.units import format_bits, format_seconds


def describe_links(links: Collection[LinkFacts]) -> str:
    """Return what the links are like, with the least and the most where they differ.

    Args:
        links: Those of all sites, at least one.
    """
    parts = [
        _range("up", [each.up for each in links], format_bits),
        _range("down", [each.down for each in links], format_bits),
        _range("latency", [each.latency or None for each in links], _delay),
        _range("jitter", [each.jitter or None for each in links], _delay),
        _range("loss", [each.loss or None for each in links], lambda loss: f"{100 * loss:.3g} %"),
    ]
    return ", ".join(part for part in parts if part) or "without limits"


def _range(name: str, values: Collection[float | None], text: Callable[[float], str]) -> str:
    """Return one clause; empty where no link has such a value."""
    there = [value for value in values if value is not None]
    if not there:
        return ""
    least, most = text(min(there)), text(max(there))
    some = "" if len(there) == len(values) else f" at {len(there):,} of {len(values):,} sites"
    return f"{name} {least}{'' if least == most else f' to {most}'}{some}"


def _delay(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else format_seconds(seconds)
