"""Distinct errors and absences of a run's sites, with tracebacks from the sites' logs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from flstream.report.text import counted
from flstream.runs.run_directory import RunDirectory
from flstream.runs.simulated_times import Absence, absence
from flstream.runs.summary import SiteFailure
from flstream.text import brief_names, printable, shortened

_MOST_TRACEBACKS, _MOST_LOGS, _MOST_LINES, _MOST_OF_A_LINE = 10, 3, 40, 200
_LOG_BYTES = 1 << 16  # of a log's end
_RAISED = re.compile(r"(?:, line (\d+) )?raised (\w+)")
# A traceback has lines that are indented, and one that is not, whose text may go on indented.
_ONE = r"Traceback \(most recent call last\):\n(?: .*\n)*\S.*(?:\n[ \t].*)*"
_WITH_CAUSES = re.compile(rf"(?:{_ONE}\n\n(?:The above exc|During handl).*\n\n)*{_ONE}")


class SiteError(NamedTuple):
    """Error that sites failed with, or another reason why they had no part in a round."""

    reason: str  # of the failures
    sites: Sequence[str]  # names of the failed sites, in order of their first failures
    times: int  # how often they failed
    last_round: int  # round of the last failure
    traceback: str  # of the last failure, from the log of a site; empty without
    kind: Absence = "failed"

    @property
    def who(self) -> str:
        """Sites of the error, and how often they failed: ``site-1: 2 times, last in round 3``."""
        times = counted(self.times, "time")
        times = times if self.kind == "failed" else f"{self.kind} {times}"
        return f"{brief_names(self.sites)}: {times}, last in round {self.last_round}"


def error_lists(
    errors: Sequence[SiteError], failures: Sequence[SiteFailure]
) -> list[tuple[str, list[SiteError]]]:
    """Return the errors, and the sites that were not waited for or left, each below a title."""
    lists = []
    for title, is_late in (("Failures", False), ("Late or away, not failed", True)):
        own = [failure.site for failure in failures if failure.late == is_late]
        if own:
            sites, times = counted(len(set(own)), "site"), counted(len(own), "time")
            title += f" ({sites}, {times}; summary.json has each reason)"
            lists.append((title, [it for it in errors if (it.kind != "failed") == is_late]))
    return lists


def site_errors(
    failures: Iterable[SiteFailure], run: RunDirectory | None = None
) -> list[SiteError]:
    """Return the distinct errors of sites, the most frequent first.

    Args:
        failures: The failures, in order.
        run: Run directory whose logs have tracebacks; None to leave these out.
    """
    by_reason: dict[tuple[str, Absence], list[SiteFailure]] = {}
    for failure in failures:
        kind = absence(failure.reason, is_late=failure.late)
        by_reason.setdefault((failure.reason, kind), []).append(failure)
    errors: list[SiteError] = []
    for (reason, kind), alike in sorted(by_reason.items(), key=lambda item: -len(item[1])):
        sites = list(dict.fromkeys(failure.site for failure in alike))
        text = ""
        if run is not None and kind == "failed" and len(errors) < _MOST_TRACEBACKS:
            latest = dict.fromkeys(failure.site for failure in reversed(alike))
            texts = (_traceback(run, site, reason) for site in list(latest)[:_MOST_LOGS])
            text = next(filter(None, texts), "")
        errors.append(SiteError(reason, sites, len(alike), alike[-1].round, text, kind))
    return errors


def _traceback(run: RunDirectory, site: str, reason: str) -> str:
    """Return the last lines of an error's last traceback in a site's log; empty without one."""
    raised = _RAISED.search(reason)
    if raised is None:
        return ""
    line, name = raised.groups()
    for match in reversed([*_WITH_CAUSES.finditer(_log_end(run, site))]):
        last = match[0].rpartition("most recent call last")[2]
        has_line = line is None or f", line {line}, in" in last
        if has_line and re.search(rf"^[\w.]*\b{name}\b", last, re.MULTILINE):
            lines = (printable(text.expandtabs(4)) for text in match[0].splitlines()[-_MOST_LINES:])
            return "\n".join(shortened(text, _MOST_OF_A_LINE) for text in lines)
    return ""


def _log_end(run: RunDirectory, site: str) -> str:
    """Return the end of a site's log; empty where it cannot be read."""
    with suppress(OSError):
        path = run.site_log(site)
        if site in os.listdir(run.sites) and path.is_file():  # a name may have any characters
            with path.open("rb") as log:
                log.seek(max(path.stat().st_size - _LOG_BYTES, 0))
                return log.read(_LOG_BYTES).decode(errors="replace")
    return ""
