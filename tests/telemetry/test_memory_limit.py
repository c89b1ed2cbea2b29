"""Groups of both versions, in folders that stand for the kernel's, and scopes of systemd."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from flstream.errors import UsageError
from flstream.telemetry import MEMORY_GROUP, memory_group
from flstream.telemetry.memory_group import LimitKills, present
from flstream.telemetry.memory_limit import limited, remove_leftovers, restarted

LIMIT = 64 << 30
V2_MOUNT = "41 31 0:38 {root} {point} rw,relatime shared:9 - cgroup2 cgroup2 rw"
V1_MOUNT = "35 31 0:32 {root} {point} rw,relatime - cgroup cgroup rw,memory"
PROGRAM = """
import os, sys
from pathlib import Path
from flstream.errors import UsageError
from flstream.telemetry import MEMORY_GROUP
from flstream.telemetry.memory_group import present
from flstream.telemetry.memory_limit import restart, restarted

try:
    if MEMORY_GROUP in os.environ:
        with restarted(Path(sys.argv[1])) as is_own:
            print(is_own, present().limit, present().owner == os.getpid(), *sys.argv[2:])
        print(MEMORY_GROUP in os.environ)
    else:
        restart(4 << 30, Path(sys.argv[1]))
except UsageError as error:
    sys.exit(str(error))
"""
SYSTEMD_RUN = """#!/bin/sh
echo "$*" >> {log}
for word in "$@"; do
  case "$word" in
    --property=OOMPolicy=*) {policy};;
    --property=MemoryMax=*) echo "${{word#*MemoryMax=}}" > {scope}/memory.max;;
  esac
done
while [ "$1" != "--" ]; do shift; done
shift
exec "$@"
"""


class Kernel:
    """Folders that stand for those of /proc and of the mounted control groups."""

    def __init__(self, folder: Path) -> None:
        self.proc, self.v1, self.v2 = folder / "proc", folder / "v1", folder / "v2"
        self.proc.mkdir()
        self.groups, self.mounts = list[str](), list[str]()
        self.mount()

    def mount(self) -> None:
        (self.proc / "cgroup").write_text("\n".join(self.groups) + "\n")
        (self.proc / "mountinfo").write_text("\n".join(self.mounts) + "\n")

    def with_v2(self, group: str, controllers: str, *, root: str = "/") -> Path:
        own = self.v2 / group.removeprefix(root).strip("/")
        own.mkdir(parents=True)
        (own / "cgroup.controllers").write_text(controllers)
        (own / "cgroup.subtree_control").write_text("")
        (own / "cgroup.procs").write_text(f"{os.getppid()}\n{os.getpid()}\n")
        self.groups.append(f"0::{group}")
        self.mounts.append(V2_MOUNT.format(root=root, point=self.v2))
        self.mount()
        return own

    def with_v1(self, group: str, *, root: str = "/") -> Path:
        own = self.v1 / group.removeprefix(root).strip("/")
        own.mkdir(parents=True)
        self.groups.append(f"4:memory:{group}")
        self.mounts.append(V1_MOUNT.format(root=root, point=self.v1))
        self.mount()
        return own


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    monkeypatch.delenv(MEMORY_GROUP, raising=False)
    # The kernel's files go with their folder.
    monkeypatch.setattr(Path, "rmdir", shutil.rmtree)
    new_folder = tempfile.mkdtemp

    def new_group(prefix, dir):
        path = new_folder(prefix=prefix, dir=dir)
        Path(path, "memory.oom_control").touch()
        return path

    monkeypatch.setattr(tempfile, "mkdtemp", new_group)
    return Kernel(tmp_path)


def groups_in(folder: Path) -> list[Path]:
    return list(folder.glob("flstream-*"))


def refusal(kernel: Kernel, limit: int = LIMIT) -> str:
    with pytest.raises(UsageError) as refused, limited(limit, kernel.proc):
        pass
    return str(refused.value)


def test_a_group_of_version_2_is_beside_that_of_the_process_which_comes_back(kernel):
    home = kernel.with_v2("/app.slice/shell.scope", "cpu memory pids")
    kernel.with_v1("/")  # the second choice
    with limited(LIMIT, kernel.proc) as group:
        assert present() is group
        [path] = groups_in(home.parent)
        assert (path / "memory.max").read_text() == str(LIMIT)
        assert (path / "memory.swap.max").read_text() == "0"
        assert (path / "cgroup.procs").read_text() == str(os.getpid())
        with limited(LIMIT, kernel.proc) as again:
            assert again is group
        for current in (5, 9, 7):  # without memory.peak
            (path / "memory.current").write_text(f"{current}\n")
            (path / "memory.stat").write_text(f"anon {current - 3}\nfile 2\nshmem 1\n")
            group.sample()
        assert (group.peak(), group.peak_anonymous) == (9, 7)
        (path / "memory.peak").write_text("11\n")
    assert (group.peak(), present()) == (11, None)
    assert groups_in(home.parent) == groups_in(kernel.v1) == []
    assert (home / "cgroup.procs").read_text() == str(os.getpid())


def test_in_the_root_of_version_2_the_controller_is_switched_on(kernel):
    home = kernel.with_v2("/", "memory")
    with limited(LIMIT, kernel.proc):
        assert len(groups_in(home)) == 1
    assert (home / "cgroup.subtree_control").read_text() == "+memory"


@pytest.mark.parametrize("root", ["/", "/docker/a"])
def test_without_the_controller_of_version_2_a_group_is_of_version_1(kernel, root):
    kernel.with_v2("/", "")
    home = kernel.with_v1("/docker/a", root=root)
    with limited(LIMIT, kernel.proc) as group:
        [path] = groups_in(home)
        for name in ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"):
            assert (path / name).read_text() == str(LIMIT)
        (path / "memory.max_usage_in_bytes").write_text(f"{LIMIT}\n")
        (path / "memory.stat").write_text("rss 1\ntotal_cache 9\ntotal_rss 5\ntotal_shmem 3\n")
        group.sample()
        assert (group.peak(), group.peak_anonymous) == (LIMIT, 8)
    assert groups_in(home) == []


def test_a_kill_is_told_once_and_only_if_the_limit_was_reached(kernel):
    home = kernel.with_v1("/")
    with limited(LIMIT, kernel.proc):
        [path] = groups_in(home)
        events = path / "memory.oom_control"
        events.write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
        (path / "memory.max_usage_in_bytes").write_text(str(LIMIT >> 1))
        kills = LimitKills()
        assert kills.clause() == ""
        events.write_text("oom_kill 2\n")  # by the machine, which is out of memory
        assert kills.clause() == ""
        (path / "memory.max_usage_in_bytes").write_text(str(LIMIT - 4096))
        later = LimitKills()
        sentence = kills.clause(", or wait")
        assert "reached memory_limit = 64 GiB; raise it" in sentence
        assert sentence.endswith(", or wait")
        assert kills.clause() == later.clause() == ""


def test_kills_of_two_processes_in_version_2_are_told_to_each_and_old_ones_to_none(kernel):
    home = kernel.with_v2("/app.slice/shell.scope", "memory")
    with limited(LIMIT, kernel.proc) as group:
        events = group.path / "memory.events"
        events.write_text("low 0\nhigh 0\nmax 7\noom 0\noom_kill 0\n")
        first, second = LimitKills(), LimitKills()
        events.write_text("max 9\noom 0\noom_kill 1\n")  # by the machine
        assert first.clause() == ""
        events.write_text("max 9\noom 2\noom_kill 2\n")
        assert first.clause() != "" != second.clause()
        events.write_text("max 9\noom 3\noom_kill 3\n")  # of a process that nobody asks about
        first.renew()
        assert first.clause() == ""
    assert groups_in(home.parent) == []


def test_a_launcher_forgets_kills_that_sites_have_survived(kernel, monkeypatch):
    kernel.with_v2("/app.slice/shell.scope", "memory")
    now = [100.0]
    monkeypatch.setattr(memory_group, "monotonic", lambda: now[0])
    with limited(LIMIT, kernel.proc) as group:
        kills = LimitKills()
        (group.path / "memory.events").write_text("oom 1\noom_kill 1\n")
        for seconds in (101.0, 106.0):
            now[0] = seconds
            kills.forget_old()
        assert kills.clause() != ""  # it may have been a moment ago
        (group.path / "memory.events").write_text("oom 2\noom_kill 2\n")
        for seconds in (112.0, 118.0):
            now[0] = seconds
            kills.forget_old()
        assert kills.clause() == ""


def test_where_no_group_can_be_made_the_sentence_says_what_was_tried(kernel, monkeypatch):
    home = kernel.with_v2("/a.slice/b.scope", "memory")
    (home / "memory.max").write_text("123\n")
    reason = refusal(kernel)
    parts = ("b.scope has a limit of its own", "cgroup v1: it is not mounted", "Delegate=memory")
    assert all(part in reason for part in (*parts, "systemd-run --user --scope: only"))
    assert "memory_limit is 1 MiB, and this process alone has" in refusal(kernel, 1 << 20)


def test_a_scope_of_this_process_alone_is_not_left_for_a_group_beside_it(kernel):
    home = kernel.with_v2("/app.slice/run-1.scope", "memory")
    (home / "cgroup.procs").write_text(f"{os.getpid()}\n")
    assert "run-1.scope has no other process, so systemd would end it" in refusal(kernel)
    service = kernel.with_v2("/app.slice/run-2.service", "memory")  # which has a main process
    kernel.groups[:] = kernel.groups[1:]
    kernel.mount()
    (service / "cgroup.procs").write_text(f"{os.getpid()}\n")
    with limited(LIMIT, kernel.proc):
        assert len(groups_in(service.parent)) == 1


def test_a_limited_run_alone_in_its_scope_begins_anew_in_one_of_systemd(kernel, tmp_path):
    scope = kernel.with_v2("/user.slice/run-1.scope", "memory")
    done = run_program(kernel, tmp_path, scope, "true")
    assert done.stdout.splitlines() == [f"True {4 << 30} True an argument", "False"], done.stderr
    assert groups_in(scope.parent) == []


def test_groups_without_processes_are_removed_and_there_may_be_no_groups(kernel, monkeypatch):
    home = kernel.with_v1("/")
    for name in ("flstream-a", "flstream-b", "other"):
        (home / name).mkdir()

    def rmdir(path):
        if path.name.endswith("b"):
            raise OSError(16, "it has processes")
        shutil.rmtree(path)

    monkeypatch.setattr(Path, "rmdir", rmdir)
    remove_leftovers(kernel.proc)
    assert sorted(path.name for path in home.iterdir()) == ["flstream-b", "other"]
    (kernel.proc / "cgroup").unlink()
    remove_leftovers(kernel.proc)
    assert "cgroup v2: it is not mounted" in refusal(kernel)


@pytest.mark.parametrize("variable", ["", "1\n2", "me\n2\n\n/"])
def test_a_variable_that_flstream_has_not_set_is_no_group(kernel, monkeypatch, variable):
    monkeypatch.setenv(MEMORY_GROUP, variable)
    assert present() is None
    assert LimitKills().clause() == ""
    with restarted(kernel.proc) as is_own:
        assert not is_own


def test_signals_wait_until_a_group_is_left_even_without_pidfds(kernel, monkeypatch):
    home = kernel.with_v1("/")
    masks = []

    def refuse(pid):
        masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    with limited(LIMIT, kernel.proc):
        [path] = groups_in(home)
        (path / "cgroup.procs").write_text(f"{os.getpid()}\n1\n")
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    assert {signal.SIGINT, signal.SIGTERM, signal.SIGHUP} <= masks[0]
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
    assert groups_in(home) == []


@pytest.mark.parametrize("knows_policies", [True, False])
def test_systemd_makes_a_group_where_none_is_writable(kernel, tmp_path, knows_policies):
    scope = kernel.with_v2("/user.slice/shell.scope", "cpu")
    done = run_program(kernel, tmp_path, scope, "true" if knows_policies else "exit 1")
    assert done.stdout.splitlines() == [f"True {4 << 30} True an argument", "False"]
    *_, last = (tmp_path / "log").read_text().splitlines()
    assert last.startswith(f"--user --scope --quiet --property=MemoryMax={4 << 30} ")
    assert ("OOMPolicy=continue" in last) == knows_policies
    assert "MemorySwapMax=0" in last


def test_a_systemd_that_gives_no_limit_or_does_not_answer_is_named(kernel, tmp_path):
    scope = kernel.with_v2("/user.slice/shell.scope", "cpu")
    done = run_program(kernel, tmp_path, tmp_path / "proc", "true")
    assert "it has set no limit" in done.stderr
    assert not (scope / "memory.max").exists()
    done = run_program(kernel, tmp_path, tmp_path, "true", "echo no bus >&2; exit 1\n")
    assert "systemd-run --user --scope: no bus" in done.stderr
    assert "no memory controller is delegated to" in done.stderr


def run_program(kernel, folder, scope, policy, text=SYSTEMD_RUN):
    """Run a program that begins anew in a group, with a systemd-run of its own."""
    program, systemd_run = folder / "program.py", folder / "systemd-run"
    program.write_text(PROGRAM)
    log = folder / "log"
    systemd_run.write_text(
        "#!/bin/sh\n" + text
        if text is not SYSTEMD_RUN
        else text.format(log=log, policy=policy, scope=scope)
    )
    systemd_run.chmod(0o755)
    words = [sys.executable, program, kernel.proc, "an argument"]
    return subprocess.run(
        ["sh", "-c", f'echo $$ > {scope}/cgroup.procs; exec "$@"', "", *words],
        env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=60,
    )
