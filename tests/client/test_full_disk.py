"""A disk that is full at one site: what it could not write is the reason, and others go on."""

import os

import pytest
from training_scripts import QUIET, plain

from flstream.worker import user_code

ENOSPC = "No space left on device"
NAMED = {
    f"OSError(28, {ENOSPC!r})": True,
    "RuntimeError('write failed')": True,
    f"OSError(28, {ENOSPC!r}, '/data/cache')": False,
}


@pytest.mark.parametrize("error", NAMED)
def test_a_full_disk_is_named_where_the_error_names_no_file(jobs, monkeypatch, error):
    monkeypatch.setattr(user_code, "_is_full", lambda folder: folder.endswith("/site-2"))
    script = plain(f"if site == 'site-2':\n    raise {error}")
    [failure] = jobs.run(script, "clients.min_updates=1", "rounds=1", QUIET).summary.failures
    disk = os.path.realpath(jobs.folder / "run-0" / "sites" / "site-2")
    assert failure.reason.endswith(f" (no space is left on the disk of {disk})") == NAMED[error]


# What a site whose log is on a full disk has for its output, whatever it is that is full there.
LOG_IS_FULL = "full = os.open('/dev/full', os.O_WRONLY); os.dup2(full, 1); os.dup2(full, 2)\n"
FAILS = {
    "site-2": (f"{LOG_IS_FULL}raise ValueError('the loss is 7')", "ValueError: the loss is 7"),
    "site-3": (f"{LOG_IS_FULL}print('unlike others')", f"OSError: [Errno 28] {ENOSPC}"),
}


@pytest.mark.nightly
@pytest.mark.usefixtures("processes")
def test_what_failed_is_the_reason_though_the_log_cannot_be_written(jobs):
    script = plain(f"exec({FAILS!r}.get(site, ('',))[0])")
    how = ("clients.count=3", "clients.parallel=1", "clients.min_updates=1")
    run = jobs.run(script, *how, "clients.suspend_after=0", QUIET).finished()
    assert [each.site for each in run.summary.failures] == ["site-2", "site-3"] * 2
    for failure in run.summary.failures:
        assert failure.reason.endswith(FAILS[failure.site][1])
    # What the site could not print is in no other site's log.
    logs = [path.read_text() for path in run.directory.path.rglob("*log*") if path.is_file()]
    assert not any("unlike others" in each for each in logs)
