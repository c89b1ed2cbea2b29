"""A disk that is full at one site: what it could not write is the reason, and others go on."""

import json
import shutil
import subprocess

import pytest
from cli_support import PROGRAM, environment

from flstream.client import site_folder

# Neither file systems nor processes of others are touched.
OF_ITS_OWN = ["unshare", "--user", "--map-root-user", "--mount"]
SETTINGS = ["clients.min_updates=1", "clients.suspend_after=0"]

HEAD = "import errno, os, subprocess, sys, torch\n"
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
        job = write_job("exec(MISTAKE) if flare.get_site_name() == 'site-2' else None")
        script = job.parent / "client.py"
        script.write_text(f"{HEAD}MISTAKE = {mistake!r}\n{script.read_text()}")
        overrides = [word for each in (*SETTINGS, *settings) for word in ("--set", each)]
        command = [*prefix, *PROGRAM, "simulate", job, "--json", "--run-dir", "run", *overrides]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=120
        )
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        summary = json.loads(done.stdout)
        assert {each["site"] for each in summary["failures"]} <= {"site-2"}
        # What the site could not print is in no other site's log.
        logs = [path.read_text() for path in (tmp_path / "run").rglob("*log*") if path.is_file()]
        assert not any("unlike others" in each for each in logs)
        return [each["reason"] for each in summary["failures"]]

    return run


LOGGED = {
    LOG_IS_FULL + "raise ValueError('the loss is 7')": "ValueError: the loss is 7",
    LOG_IS_FULL + "print('unlike others')": "OSError: [Errno 28] No space left on device",
    "raise OSError(errno.ENOSPC, os.strerror(28), '/data/cache')": "on device: '/data/cache'",
}


def test_a_disk_is_named_where_the_error_names_no_file(monkeypatch, tmp_path):
    monkeypatch.setattr(site_folder, "_is_full", lambda folder: folder == str(tmp_path))
    named = f" (no space is left on the disk of {tmp_path})"
    for error in (OSError(28, "No space left on device"), RuntimeError("write failed")):
        assert site_folder.explain_path(error, "/job", str(tmp_path)) == named
    error = OSError(28, "No space left on device", "/data/cache")
    assert site_folder.explain_path(error, "/job", str(tmp_path)) == ""


@pytest.mark.nightly
@pytest.mark.parametrize("mistake", LOGGED)
def test_what_failed_is_the_reason_though_the_log_cannot_be_written(fail, mistake):
    reasons = fail(mistake, "clients.parallel=1")
    assert len(reasons) == 2
    for reason in reasons:
        assert reason.endswith(LOGGED[mistake])


FILE = "with open(folder + '/cache', 'wb') as file: file.write(bytes(1 << 20))"
# There is room for one of them.
STATE = "(flare.get_state_dir() / str(model.current_round)).write_bytes(bytes(150 << 10))"


@pytest.mark.nightly
@pytest.mark.parametrize(
    "writes", [FILE, "torch.save(torch.ones(1 << 20), folder + '/net.pt')", STATE]
)
def test_a_full_disk_that_the_system_does_not_name_is_named(fail, tmp_path, writes):
    try_it = [*OF_ITS_OWN, "mount", "-t", "tmpfs", "none", "/mnt"]
    if not shutil.which("unshare") or subprocess.run(try_it, capture_output=True).returncode:
        pytest.skip("a file system of one's own cannot be mounted here")
    reason, *_ = fail(SMALL_DISK + writes, prefix=OF_ITS_OWN)
    if writes == STATE:
        assert f"laid out for effect 2: {tmp_path}/run/sites/site-2/state" in reason
        assert "No space left on device; put that right" in reason
    else:
        assert "client.py, line" in reason
        assert f"(no space is left on the disk of {tmp_path}/run/sites/site-2)" in reason
