"""A disk that fills up in the middle of a run costs no completed round, whatever fails first."""

import errno
import itertools
import os
import subprocess
import sys

import pytest
from nightly_cases import first_and_nightly
from training_scripts import QUIET, noisy, results

JOB = ["model.args.elements=300000", "clients.count=3", "rounds=3", QUIET]


@pytest.fixture(scope="module")
def expected(tmp_path_factory, jobs_in):
    """The results of a run that has all the disk it needs."""
    return results(jobs_in(tmp_path_factory.mktemp("expected")).run(noisy(), *JOB))


@first_and_nightly(
    ("call", "count"),
    [("posix_fallocate", 2), ("pwrite", 5), ("sendfile", 2), ("fsync", 8), ("rename", 3),
     ("replace", 5), ("pwrite", 2), ("pwrite", 7), ("fsync", 13)],
    brief=6,
)  # fmt: skip
def test_a_run_goes_on_to_the_same_bits_once_there_is_room(
    jobs, monkeypatch, expected, call, count
):
    calls, real = itertools.count(), getattr(os, call)

    def full(*args, **how):
        if next(calls) >= count:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*args, **how)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        run = jobs.run(noisy(), *JOB)
    assert run.summary.status == "failed"
    assert "No space left on device" in run.summary.error
    assert list(run.directory.path.rglob("round-*.tmp")) == []
    assert results(jobs.go_on(run, noisy(), *JOB)) == expected


# The disk of one site's log is full, where another's is not.
TWO_LOGS = """
from pathlib import Path
from flstream.simulation.child import SiteLogs

logs = SiteLogs(Path("own"), Path)
logs.enter("site-1")
try:
    print("lost")
except OSError as error:
    reason = str(error)
print("lost, too", end="")
logs.enter("site-2")
print("reason:", reason)
"""


def test_what_one_log_has_no_room_for_is_an_error_and_in_no_other_log(tmp_path):
    (tmp_path / "site-1").symlink_to("/dev/full")
    subprocess.run([sys.executable, "-c", TWO_LOGS], cwd=tmp_path, check=True)
    assert (tmp_path / "site-2").read_text() == "reason: [Errno 28] No space left on device\n"
    assert (tmp_path / "own").read_text() == ""
