"""Parsing and printing of sizes, durations and rates.

The spellings are those of HOCON: a single letter (`2M`) and an `i` (`2 MiB`) count in
powers of two, `2 MB` and `2 megabytes` in powers of ten. Letter case does not matter.
Rates of links are in bits a second, of which HOCON knows nothing, and always in powers of ten.
"""

import math
import re
from collections.abc import Mapping
from datetime import timedelta
from fractions import Fraction

SIZE_ALLOWED = "a size such as 2097152, 2 MiB or 2 MB"
DURATION_ALLOWED = "a duration such as 600 s, 500 ms, 10 minutes or 600 (seconds)"
RATE_ALLOWED = "a rate such as 10 Mbit, 250 kbit/s or 10000000 (bits a second)"

_POWERS = ("kilo", "mega", "giga", "tera", "peta", "exa")
_BINARY_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def _size_units() -> dict[str, int]:
    units = dict.fromkeys(("", "b", "byte", "bytes"), 1)
    for power, prefix in enumerate(_POWERS, start=1):
        letter = prefix[0]
        for name in (f"{letter}b", f"{prefix}byte", f"{prefix}bytes"):
            units[name] = 1000**power
        binary = f"{prefix[:2]}bi"
        for name in (letter, f"{letter}i", f"{letter}ib", f"{binary}byte", f"{binary}bytes"):
            units[name] = 1024**power
    return units


def _duration_units() -> dict[str, Fraction]:
    spellings = {
        Fraction(1, 10**9): "ns nano nanos nanosecond nanoseconds",
        # Both letters that print as a mu: the micro sign and the Greek one.
        Fraction(1, 10**6): "us \u00b5s \u03bcs micro micros microsecond microseconds",
        Fraction(1, 10**3): "ms milli millis millisecond milliseconds",
        Fraction(1): "s second seconds",
        Fraction(60): "m minute minutes",
        Fraction(3600): "h hour hours",
        Fraction(86400): "d day days",
        Fraction(604800): "w week weeks",
    }
    units = {name: unit for unit, names in spellings.items() for name in names.split()}
    return {"": Fraction(1), **units}


_RATE_UNITS = {"": 1, "bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9, "tbit": 10**12}
_SIZE_UNITS = _size_units()
_DURATION_UNITS = _duration_units()

# The digits are bounded so that no text can ask for a number of unbounded size.
_AMOUNT = re.compile(
    r"\s*(?P<number>(?:[0-9]{1,40}(?:\.[0-9]{0,40})?|\.[0-9]{1,40})(?:e[+-]?[0-9]{1,3})?)"
    r"\s*(?P<unit>[a-z\u00b5\u03bc]*)\s*",
    re.IGNORECASE,
)


def parse_bytes(value: str | int | float) -> int:
    """Parse a size in any of HOCON's spellings.

    Args:
        value: A number of bytes, or text such as `1.5 GiB`. A fraction of a unit is rounded to
            the nearest byte.

    Returns:
        The size in bytes.

    Raises:
        ValueError: The value is no size, is negative, or is not a whole number of bytes where no
            larger unit is named; the message lists what is allowed.
    """
    amount, unit = _split(value, SIZE_ALLOWED)
    if unit not in _SIZE_UNITS:
        raise ValueError(f"must be {SIZE_ALLOWED}")
    exact = amount * _SIZE_UNITS[unit]
    size = round(exact)
    # Zero often has a meaning of its own ("off"), so nothing is rounded down to it.
    if exact != size and (_SIZE_UNITS[unit] == 1 or size == 0):
        raise ValueError(f"must be {SIZE_ALLOWED}: a whole number of bytes")
    return size


def parse_seconds(value: str | int | float | timedelta) -> float:
    """Parse a duration in any of HOCON's spellings.

    Args:
        value: A number of seconds, a timedelta, or text such as `10 minutes`.

    Returns:
        The duration in seconds.

    Raises:
        ValueError: The value is no duration or is negative; the message lists what is allowed.
    """
    if isinstance(value, timedelta):
        value = value.total_seconds()
    return _scaled(value, _DURATION_UNITS, DURATION_ALLOWED)


def parse_rate(value: str | int | float) -> float:
    """Parse a rate of bits.

    Args:
        value: A number of bits a second, or text such as `10 Mbit` or `10 Mbit/s`. Units of bytes
            are refused, since `10 MB` is too easily written for `10 Mbit`.

    Returns:
        The rate in bits a second.

    Raises:
        ValueError: The value is no rate or is negative; the message lists what is allowed.
    """
    if isinstance(value, str):
        value = re.sub(r"/\s*s\s*$", "", value, flags=re.IGNORECASE)
    return _scaled(value, _RATE_UNITS, RATE_ALLOWED)


def _scaled(value: str | int | float, units: Mapping[str, int | Fraction], allowed: str) -> float:
    amount, unit = _split(value, allowed)
    if unit not in units:
        raise ValueError(f"must be {allowed}")
    try:
        return float(amount * units[unit])
    except OverflowError:
        raise ValueError(f"must be {allowed}") from None


def _split(value: str | int | float, allowed: str) -> tuple[Fraction, str]:
    """Split a value into its exact amount and its unit in lower case, if any."""
    if isinstance(value, str):
        match = _AMOUNT.fullmatch(value)
        if match is None:
            raise ValueError(f"must be {allowed}")
        return Fraction(match["number"]), match["unit"].lower()
    # bool is an int to Python, but `true` is no number to a reader.
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"must be {allowed}")
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"must be {allowed}")
    return Fraction(value), ""


def format_bytes(size: int) -> str:
    """Format bytes for display: `2 MiB` where that is exact, else `17.3 MiB`."""
    if size < 0:
        return f"-{format_bytes(-size)}"
    if size < 1024:
        return f"{size} B"
    for power, name in enumerate(_BINARY_UNITS, start=1):
        unit = 1024**power
        # Compared as printed, so that nothing ever reads "1024.0 KiB".
        if round(size / unit, 1) < 1024 or name == _BINARY_UNITS[-1]:
            break
    return f"{size // unit} {name}" if size % unit == 0 else f"{size / unit:.1f} {name}"


def format_rate(bytes_per_second: float) -> str:
    """Format a throughput in bytes a second for display: `310.5 MiB/s`."""
    return f"{format_bytes(round(bytes_per_second))}/s"


def format_bytes_exact(size: int) -> str:
    """Format bytes without loss, as `64 MiB` or a number, for `parse_bytes`."""
    for power in range(len(_BINARY_UNITS), 0, -1):
        count, rest = divmod(size, 1024**power)
        if count and not rest:
            return f"{count} {_BINARY_UNITS[power - 1]}"
    return str(size)


def format_seconds(seconds: float) -> str:
    """Format seconds for display: `0.5 s`, `12.3 s`, `2m 05s`, `1h 02m 05s`."""
    if seconds < 59.95:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h {minutes:02d}m {rest:02d}s" if hours else f"{minutes}m {rest:02d}s"


def format_seconds_exact(seconds: float) -> str:
    """Format seconds without loss, as `600 s` or `0.5 s`, for `parse_seconds`."""
    return f"{int(seconds) if seconds.is_integer() else seconds!r} s"


def format_bits_exact(bits: float) -> str:
    """Format bits a second without loss, as `10 Mbit`, for `parse_rate`."""
    for unit, name in ((10**9, "Gbit"), (10**6, "Mbit"), (10**3, "kbit")):
        if bits and bits % unit == 0:
            return f"{int(bits // unit)} {name}"
    return f"{int(bits) if bits.is_integer() else bits!r}"
