"""A disk that is full at one site: what it could not write is the reason, and others go on."""

import json
import shutil
import subprocess
import sys

import pytest
from cli_support import environment
from nightly_cases import first_and_nightly

FLSTREAM = [sys.executable, "-m", "flstream", "simulate"]
# Neither file systems nor processes of others are touched.
OF_ITS_OWN = ["unshare", "--user", "--map-root-user", "--mount"]
SETTINGS = ["clients.min_updates=1", "clients.bench_after=0"]

HEAD = """
import errno
import os
import subprocess
import sys
import torch
"""
# What a site whose log is on a full disk has for its output, whatever it is that is full there.
LOG_IS_FULL = """
full = os.open("/dev/full", os.O_WRONLY)
os.dup2(full, 1)
os.dup2(full, 2)
"""
SMALL_DISK = """
folder = flare.system_info()["site_dir"]
if model.current_round == 0:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", folder], check=True)
"""


@pytest.fixture
def fail(write_job, tmp_path):
    """Return a function that runs a job whose second site does something, and why that failed."""

    def run(mistake, *settings, prefix=()):
        job = write_job()
        lines = [f"        {line}" for line in mistake.strip().splitlines()]
        script = (job.parent / "client.py").read_text().splitlines()
        place = script.index("    model = flare.receive()") + 1
        script[place:place] = ["    if flare.get_site_name() == 'site-2':", *lines]
        (job.parent / "client.py").write_text("\n".join([HEAD, *script]))
        overrides = [word for each in (*SETTINGS, *settings) for word in ("--set", each)]
        done = subprocess.run(
            [*prefix, *FLSTREAM, job, "--json", "--run-dir", "run", *overrides],
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        summary = json.loads(done.stdout)
        assert {each["site"] for each in summary["failures"]} <= {"site-2"}
        assert "closed the channel" not in done.stdout
        return [each["reason"] for each in summary["failures"]]

    return run


@pytest.fixture
def on_a_small_disk(fail):
    """Return such a function for what mounts a small file system in the site's folder."""
    try_it = [*OF_ITS_OWN, "mount", "-t", "tmpfs", "none", "/mnt"]
    if not shutil.which("unshare") or subprocess.run(try_it, capture_output=True).returncode:
        pytest.skip("a file system of one's own cannot be mounted here")
    return lambda mistake, *settings: fail(SMALL_DISK + mistake, *settings, prefix=OF_ITS_OWN)


# A process for each site, and one that runs the script for one site after another.
WORKERS = pytest.mark.parametrize("workers", [2, 1])


@pytest.mark.nightly
@WORKERS
def test_an_exception_is_the_reason_also_where_its_traceback_cannot_be_logged(fail, workers):
    mistake = LOG_IS_FULL + "raise ValueError('the loss is 7')"
    reasons = fail(mistake, f"clients.parallel={workers}")
    assert [each.partition(" raised ")[2] for each in reasons] == ["ValueError: the loss is 7"] * 2


@pytest.mark.nightly
@WORKERS
@first_and_nightly(
    "mistake",
    ["print('a line')", "print('a part', end=''); raise OSError(28, os.strerror(28), '/dev/full')"],
)
def test_a_log_that_cannot_be_written_is_named(fail, workers, mistake):
    reasons = fail(LOG_IS_FULL + mistake, f"clients.parallel={workers}")
    assert len(reasons) == 2
    for reason in reasons:
        assert reason.endswith("raised OSError: [Errno 28] No space left on device: '/dev/full'")


@pytest.mark.nightly
def test_what_a_site_could_not_print_is_in_no_other_sites_log(fail, tmp_path):
    assert fail(LOG_IS_FULL + "sys.stdout.write('of site-2')", "clients.parallel=1") == []
    logs = [path.read_text() for path in (tmp_path / "run").rglob("*log*") if path.is_file()]
    assert not any("of site-2" in each for each in logs)


@pytest.mark.nightly
def test_an_error_that_names_its_file_is_the_reason_as_it_is(fail):
    [reason, _] = fail("raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), '/data/cache')")
    assert reason.endswith("OSError: [Errno 28] No space left on device: '/data/cache'")


WRITES = {
    "a file": "with open(folder + '/cache', 'wb') as file: file.write(bytes(1 << 20))",
    "a state": "(flare.get_state_dir() / 'cache').write_bytes(bytes(1 << 20))",
    "a model of torch": "torch.save(torch.ones(1 << 20), folder + '/net.pt')",
}


@first_and_nightly("what", WRITES)
def test_the_full_disk_of_a_file_that_the_system_does_not_name_is_named(
    on_a_small_disk, tmp_path, what
):
    [reason, *_] = on_a_small_disk(WRITES[what])
    assert "client.py, line" in reason
    assert what == "a model of torch" or "[Errno 28] No space left on device" in reason
    assert f"(no space is left on the disk of {tmp_path}/run/sites/site-2)" in reason


@pytest.mark.nightly
@WORKERS
def test_a_state_that_cannot_be_laid_out_is_named_with_its_path(on_a_small_disk, tmp_path, workers):
    state = "(flare.get_state_dir() / str(model.current_round)).write_bytes(bytes(150 << 10))"
    [reason] = on_a_small_disk(state, f"clients.parallel={workers}")  # there is room for one
    assert f"cannot be laid out for effect 3: {tmp_path}/run/sites/site-2/state" in reason
    assert "No space left on device; put that right" in reason
