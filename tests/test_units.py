"""Sizes, durations and rates: every spelling is read, and exact ones come back as they were."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flstream.units import (
    format_bits_exact,
    format_bytes,
    format_bytes_exact,
    format_rate,
    format_seconds,
    format_seconds_exact,
    parse_bytes,
    parse_rate,
    parse_seconds,
)

MIB = 1024**2
SIZES = [
    (0, 0), (2097152.0, 2 * MIB), ("2097152", 2 * MIB), ("2 MiB", 2 * MIB), (" 2  mib ", 2 * MIB),
    ("2Mi", 2 * MIB), ("2M", 2 * MIB), ("2 mebibytes", 2 * MIB), ("2MB", 2_000_000),
    ("2 megabytes", 2_000_000), ("1 KB", 1000), ("512K", 512 * 1024), ("1.5 GiB", 3 * 512 * MIB),
    (".5 KiB", 512), ("0.3 KiB", 307), ("1e3", 1000), ("5 bytes", 5), ("3T", 3 * 1024**4),
    ("1 exbibyte", 1024**6),
]  # fmt: skip
DURATIONS = [
    (600, 600.0), (0.25, 0.25), ("600", 600.0), ("600 Seconds", 600.0), ("500 ms", 0.5),
    ("10 minutes", 600.0), ("2m", 120.0), ("1h", 3600.0), ("2 days", 172800.0),
    ("10 \u00b5s", 1e-5), ("10 ns", 1e-8), (timedelta(milliseconds=500), 0.5),
]  # fmt: skip
RATES = [
    ("10 Mbit", 1e7), ("0.5 gbit / S", 5e8), ("250 kbit", 2.5e5), ("300 bit/s", 300), (1000, 1000),
    ("1e6", 1e6),
]  # fmt: skip


@pytest.mark.parametrize(
    ("parse", "spelling", "value"),
    [
        *((parse_bytes, *each) for each in SIZES),
        *((parse_seconds, *each) for each in DURATIONS),
        *((parse_rate, *each) for each in RATES),
    ],
)
def test_a_value_is_read_in_every_spelling(parse, spelling, value):
    assert parse(spelling) == value


NO_SIZES = ["", "MiB", "-2 MiB", "2 miles", "2 MiB 3", "inf", "1_000", "\u0662 minutes", -1, True]
NO_SIZES += [None, [2], float("nan"), float("inf")]
# Not whole: rounding one of these down to 0 would turn something off.
NO_SIZES += ["1.5", 1.5, 0.4, "0.0001 KiB"]
NO_DURATIONS = ["", "s", "-1 s", -1, "1 month", "1 s 2", True, None, "1e999 s", timedelta(days=-1)]
NO_RATES = ["", "10 MB", "10 MiB", "10 M", "Mbit", "-1", -1, True, None, [1]]


@pytest.mark.parametrize(
    ("parse", "junk", "allowed"),
    [
        *((parse_bytes, each, "a size such as 2097152, 2 MiB or 2 MB") for each in NO_SIZES),
        *((parse_seconds, each, "a duration such as 600 s, 500 ms") for each in NO_DURATIONS),
        *((parse_rate, each, "a rate such as 10 Mbit") for each in NO_RATES),
    ],
)
def test_what_is_none_is_refused_with_what_is_allowed(parse, junk, allowed):
    with pytest.raises(ValueError, match=f"must be {allowed}"):
        parse(junk)


@given(
    size=st.integers(0, 2**70) | st.integers(0, 2**20).map(lambda n: n * MIB),
    seconds=st.floats(0, 1e12) | st.integers(0, 10**9).map(float),
    bits=st.floats(0, 1e15) | st.integers(0, 10**9).map(lambda n: n * 1e3),
)
def test_an_exact_value_reads_back_as_itself(size, seconds, bits):
    assert parse_bytes(format_bytes_exact(size)) == size
    assert parse_seconds(format_seconds_exact(seconds)) == seconds
    assert parse_rate(format_bits_exact(bits)) == bits


PRINTED = {
    format_rate: {310.5 * MIB: "310.5 MiB/s", 12: "12 B/s"},
    format_bytes: {0: "0 B", 2 * MIB: "2 MiB", 18140365: "17.3 MiB", MIB - 1: "1.0 MiB"},
    format_bytes_exact: {0: "0", 1000: "1000", 512 * 1024: "512 KiB", 1024 * MIB: "1 GiB"},
    format_seconds: {0: "0 s", 12.34: "12.3 s", 59.96: "1m 00s", 3725: "1h 02m 05s"},
}


@pytest.mark.parametrize("print_value", PRINTED)
def test_values_are_printed_for_people(print_value):
    assert {value: print_value(value) for value in PRINTED[print_value]} == PRINTED[print_value]
