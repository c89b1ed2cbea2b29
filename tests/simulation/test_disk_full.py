"""A disk that fills up in the middle of a round costs no completed round."""

import json
import shutil
import subprocess
import sys

import pytest
from training_scripts import QUIET, noisy, results

from flstream.job import render_job

# Runs a job in a folder on a disk of its own, which is then given more room, and goes on with it.
DRIVER = """
import json, subprocess, sys
from pathlib import Path

job, disk = sys.argv[1:]
run = Path(disk) / "run"
line = [sys.executable, "-m", "flstream", "simulate", job, "--json", "--run-dir", str(run)]


def simulate(*words):
    done = subprocess.run([*line, *words], capture_output=True, text=True, timeout=300)
    return {"code": done.returncode, "summary": done.stdout, "errors": done.stderr}


first = simulate()
left = sorted(path.name for path in (run / "checkpoints").iterdir())
for ballast in run.rglob("ballast"):
    ballast.unlink()
subprocess.run(["mount", "-o", "remount,size=200m", disk], check=True)
print(json.dumps([first, left, simulate("--resume")]))
"""

pytestmark = pytest.mark.usefixtures("processes")
MIB = 1 << 20
THREE_MIB = ["model.args.elements=786432", "clients.count=3", "rounds=3", QUIET]


@pytest.fixture(scope="module")
def expected(tmp_path_factory, jobs_in):
    """The digest of a run that has all the disk it needs."""
    return results(jobs_in(tmp_path_factory.mktemp("expected")).run(noisy(), *THREE_MIB))[0]


@pytest.fixture
def on_a_small_disk(jobs, tmp_path):
    """Runs a job until its disk is full, and on when it has room."""
    disk, driver = tmp_path / "disk", tmp_path / "driver.py"
    disk.mkdir()
    driver.write_text(DRIVER)

    def run(script, size, *overrides):
        mount = f'mount -t tmpfs -o size={size} none "$1" && shift && exec "$@"'
        of_its_own = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, "sh"]
        if (
            not shutil.which("unshare")
            or subprocess.run([*of_its_own, disk, "true"], capture_output=True).returncode
        ):
            pytest.skip("a file system of one's own cannot be mounted here")
        job = jobs.make(script, *overrides)
        (tmp_path / "resolved.conf").write_text(render_job(job))
        words = [sys.executable, driver, tmp_path / "resolved.conf", disk]
        done = subprocess.run([*of_its_own, disk, *words], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        first, left, second = json.loads(done.stdout)
        assert "Traceback" not in first["errors"]
        assert (second["code"], second["errors"]) == (0, ""), second["errors"]
        return first, left, json.loads(second["summary"])

    return run


# After it has trained for round 2, a site takes all the disk there is but for some bytes, once; and
# what others give up as long as its process lives, since the server may be about to remove files.
FILLS = """
def fill(size, taken=0):
    with open(f"{folder}/ballast", "ab") as file:
        while True:
            free = os.statvfs(folder)
            room = free.f_bavail * free.f_frsize - size
            if room > 0:
                try:
                    os.posix_fallocate(file.fileno(), taken, room)
                except OSError:
                    continue  # somebody else has taken some of it meanwhile
                taken += room
            filled.set()
            pause.wait(0.001)


mark, filled, pause = f"{folder}/filled", threading.Event(), threading.Event()
if (site, number) == ("site-3", 2) and not os.path.exists(mark):
    open(mark, "w").close()
    threading.Thread(target=fill, args=[%d], daemon=True).start()
    filled.wait()
"""


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("left_over", "how"),
    [(512 << 10, []), (0, ["clients.parallel=2", "clients.min_updates=1"])],
)
def test_a_disk_that_fills_up_in_mid_round_loses_nothing(on_a_small_disk, expected, left_over, how):
    script = noisy(FILLS % left_over)
    first, left, summary = on_a_small_disk(script, 40 * MIB, *THREE_MIB, *how)
    assert first["code"] == 1
    assert "No space left on device" in first["errors"]
    assert left == ["round-0000.safetensors", "round-0001.safetensors"]
    assert summary["status"] == "finished"
    assert summary["model"]["digest"] == expected
