"""The devices of the sites: kinds that sites draw, or a file of a fleet."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

from pydantic import (
    ConfigDict,
    Field,
    PrivateAttr,
    model_validator,
)

from flstream.job.availability import AvailabilityTraces, Available
from flstream.job.device import SiteDevice
from flstream.job.distributions import (
    DELAYS,
    FRACTIONS,
    RATES,
    SIZES,
    SPEEDS,
    AnyQuantity,
    DrawnDelay,
    DrawnFraction,
    DrawnRate,
    DrawnSize,
    DrawnSpeed,
    draw,
    number_of,
)
from flstream.job.fields import Real, Section
from flstream.job.files import csv_file, csv_rows, read_row
from flstream.job.network_section import NetworkLink
from flstream.job.problems import MISSING, Problem, RefusedValueError, did_you_mean

_LIMITS = {
    "speed": SPEEDS,
    "up": RATES,
    "down": RATES,
    "latency": DELAYS,
    "memory": SIZES,
    "dropout": FRACTIONS,
}
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
# Shares are written in decimals.
_TOLERANCE = 1e-9


class _Hardware(Section):
    share: Annotated[Real, Field(gt=0, le=1)] | None = None
    """The fraction of the sites that have it, as drawn; null in all devices is equal shares.

    The shares of all devices add up to 1. A site draws its device by the job's seed and its name.
    """

    speed: DrawnSpeed = 1.0
    """How much work it does in the time in which a device of speed 1 does one.

    This and each of the next five keys is a value, or a distribution of which each site draws its
    own: `{ distribution = lognormal, median = 1, sigma = 0.5 }`, or `{ distribution = uniform, low
    = 0.5, high = 2 }`.
    """

    up: DrawnRate | None = None
    """What it can send (bits a second); null is what `network` says of the site."""

    down: DrawnRate | None = None
    """What it can receive (bits a second); null is what `network` says."""

    latency: DrawnDelay | None = None
    """How long a task waits for the link, once (duration); null is what `network` says."""

    memory: DrawnSize | None = None
    """What it has for a model (bytes); a site with less is not asked. Null is without limit."""

    dropout: DrawnFraction = 0.0
    """The probability that it takes a task and never answers (`0.05` or `5%`)."""


class DeviceSection(_Hardware):
    """A device that sites have."""

    available: Available | None = None
    """When it is there: daily windows, periods of random length, or traces; null is always.

    `{ windows = ["20:00-08:00"], spread = 2 h }` are times of the day; the first day begins with
    the run, and each site is up to `spread` early or late, as drawn. `day` may be another than
    24 h. `{ up_for = 20 h, down_for = 2 h, distribution = exponential }` are means; each site is
    there when the run begins. A text is the path of a CSV file with the columns site, seconds and
    available (0 or 1), which repeats as those of `network.traces`; a site that is not in it is
    always there.
    """


_ORDINARY = DeviceSection()


class _CsvRow(_Hardware):
    device: Annotated[str, Field(max_length=64)] | None = None


class FleetRow(NamedTuple):
    """Row of a file of a fleet; what it leaves out is None, and its section's.

    A section that sites draw is one, too, with a share at most.
    """

    device: str | None = None
    share: float | None = None
    speed: float | None = None
    up: float | None = None
    down: float | None = None
    latency: float | None = None
    memory: float | None = None
    dropout: float | None = None


class FleetFile(NamedTuple):
    """Contents of a file of a fleet.

    Attributes:
        path: Absolute path of the file.
        rows: Rows that sites draw; empty where each is the device of one site.
        sites: Rows of single sites, by the site; those that are alike are one object.
    """

    path: Path
    rows: Sequence[FleetRow]
    sites: Mapping[str, FleetRow]


def _fleet(path: Path) -> FleetFile:
    """Read a file of a fleet."""
    rows, sites, known = list[FleetRow](), dict[str, FleetRow](), dict[tuple[str, ...], FleetRow]()
    for where, cells in csv_rows(path):
        site = cells.pop("site", None)
        if site == "":
            raise ValueError(f"{where} site: {MISSING}")
        if site is not None and "share" in cells:
            raise ValueError(f"{where} share: leave it out where each site has a row of its own")
        if site in sites:
            raise ValueError(f"{where} {site} is in it twice")
        if cells.get("share") == "":
            raise ValueError(f"{where} share: {MISSING}; give each row one, or no row")
        text = tuple(cells.values())
        if text not in known:
            row = read_row(_CsvRow, where, cells)
            known[text] = FleetRow(**{key: getattr(row, key) for key in row.model_fields_set})
        if site is None:
            rows.append(known[text])
        else:
            sites[site] = known[text]
    if not rows and not sites:
        raise ValueError(f"{path} has no rows; write one for each site or device")
    for problem in _share_problems(dict(enumerate(rows))):
        raise ValueError(f"{path}: {problem}")
    return FleetFile(path, tuple(rows), sites)


def _share_problems(devices: Mapping[Any, DeviceSection | FleetRow]) -> Iterator[Problem]:
    """Yield the problem of shares that do not add up to 1."""
    shares = [device.share for device in devices.values() if device.share is not None]
    total = math.fsum(shares)
    if shares and len(shares) < len(devices):
        name = next(name for name, device in devices.items() if device.share is None)
        yield Problem(f"{name}.share", MISSING, "given for all devices, or for none")
    elif shares and abs(total - 1) > _TOLERANCE:
        yield Problem("", f"shares add up to {total:.9g}", "devices with shares that add up to 1")


class DevicesSection(Section):
    """The devices of the sites, on the virtual clock: a section for each kind, or a file.

    A site has the device that it draws by its share: `devices { phone { share = 0.7, speed = 0.5 },
    laptop { share = 0.3 } }`. Without devices all sites are alike. docs/clock.md has more.
    """

    model_config = ConfigDict(extra="allow")

    __pydantic_extra__: dict[str, DeviceSection] = Field(init=False)

    file: (
        Annotated[
            Any,
            *csv_file(
                FleetFile,
                _fleet,
                f"any of the columns site, device, share, {', '.join(_LIMITS)}",
            ),
        ]
        | None
    ) = None
    """A CSV file of a fleet, with a row for each site, or for each device that sites draw.

    The columns are any of site, device, share, speed, up, down, latency, memory and dropout. With
    the column site, a row is the device of that site, and sites without a row draw one of the
    sections. Without it, sites draw a row, by its share or with equal chances. Where there are
    sections, the column device names one, which has what the row leaves out.
    """

    _drawn: tuple[Sequence[FleetRow], Sequence[float]] = PrivateAttr(((), ()))
    """Rows that sites draw, and the sum of the shares up to each."""

    @model_validator(mode="after")
    def _sound(self) -> Self:
        if problems := [*self._problems()]:
            raise RefusedValueError(*problems)
        rows = [FleetRow(name, section.share) for name, section in self.named.items()]
        if self.file is not None and not self.file.sites:
            rows = self.file.rows
        shares = (1 / len(rows) if row.share is None else row.share for row in rows)
        self._drawn = rows, [*accumulate(shares)]
        return self

    def _problems(self) -> Iterator[Problem]:
        for name in self.named:
            if not _NAME.fullmatch(name):
                yield Problem("", f"key {name}", "letters, digits, _ and -, a letter first")
        fleet = self.file
        if fleet is None or fleet.sites:
            yield from _share_problems(self.named)
        if fleet is None:
            return
        used = {row.device for row in (*fleet.rows, *fleet.sites.values())}
        for name, device in self.named.items():
            if not fleet.sites and device.share is not None:
                yield Problem(f"{name}.share", "", "null where sites draw rows of devices.file")
            if not fleet.sites and name not in used:
                yield Problem(name, "", f"a device of rows of {fleet.path}, which has none")
        if self.named and (unknown := sorted(used - {None, *self.named})):
            hint = did_you_mean(str(unknown[0]), self.named)
            allowed = f"a file whose column device has {', '.join(self.named)}"
            yield Problem("file", f"{fleet.path} has {unknown[0]}", allowed, hint)

    @property
    def named(self) -> Mapping[str, DeviceSection]:
        """Sections of devices, by name."""
        return self.model_extra or {}

    @property
    def is_on(self) -> bool:
        """Whether devices are given."""
        return self.file is not None or bool(self.named)

    @property
    def files(self) -> Mapping[str, FleetFile | AvailabilityTraces]:
        """Contents of files that keys of the section name, by the key within it."""
        traces = {f"{name}.available": device.available for name, device in self.named.items()}
        files = {key: file for key, file in traces.items() if isinstance(file, AvailabilityTraces)}
        return files if self.file is None else {"file": self.file, **files}

    def device(self, site: str, seed: int, link: NetworkLink) -> SiteDevice:
        """Return the device of a site.

        Args:
            site: Name of the site.
            seed: Seed of the job.
            link: Link of the site, which has what the device leaves out.
        """
        if not self.is_on:
            return SiteDevice(up=link.up, down=link.down, latency=link.latency)
        row = None if self.file is None else self.file.sites.get(site)
        if row is None:
            rows, ends = self._drawn
            place = bisect_right(ends, number_of("devices", seed, "device", site))
            # The sum of all shares may be a little below 1.
            row = rows[min(place, len(rows) - 1)]
        section, values = self.named.get(row.device or "", _ORDINARY), dict[str, float]()
        for key, limits in _LIMITS.items():
            own: AnyQuantity | None = getattr(row, key)
            quantity = getattr(section, key) if own is None else own
            if quantity is not None:
                values[key] = draw(quantity, limits, "devices", seed, key, site)
        memory, available = values.pop("memory", None), section.available
        return SiteDevice(
            name=row.device or (self.file.path.stem if self.file else ""),
            speed=values.get("speed", 1.0),
            up=values.get("up", link.up),
            down=values.get("down", link.down),
            latency=values.get("latency", link.latency),
            memory=None if memory is None else round(memory),
            dropout=values.get("dropout", 0.0),
            availability=None if available is None else available.availability(seed, site),
        )
