"""The memory limit of a run: a control group of the kernel around all of its processes.

The launcher enters a new group before it starts others, which inherit it. The kernel charges memory
to the group that touched it first; so the command line begins anew in the group, and what it had
imported before counts, too. The group's memory includes cached pages of files, which the kernel
drops or writes to the disk rather than exceed the limit. Swap is not allowed, as far as the kernel
can be told.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

from flstream.errors import UsageError
from flstream.telemetry import MEMORY_GROUP
from flstream.telemetry.memory import own_rss
from flstream.telemetry.memory_group import STOPS, V1, V2, GroupFiles, MemoryGroup, present
from flstream.units import format_bytes

_PREFIX = "flstream-"
_PROC = Path("/proc/self")
# Time for systemd to answer.
_ANSWER_SECONDS = 20.0
_SCOPE = "systemd-run --user --scope"
# Else systemd ends a whole scope of which one process is killed. Before version 253 it knows no
# such property of scopes, and does not do it.
_POLICIES = ["OOMPolicy=continue"], list[str]()


@contextmanager
def limited(limit: int | None, proc: Path = _PROC) -> Iterator[MemoryGroup | None]:
    """Run a block with this process, and those that it starts, in a group with a limit.

    Nothing is done without a limit, or if this process has entered its run's group before.

    Args:
        limit: Limit in bytes; None for none.
        proc: Folder with ``cgroup`` and ``mountinfo`` of this process.

    Raises:
        UsageError: No group can be made, or this process has more memory than that already.
    """
    group = None if limit is None else present()
    if limit is None or (group is not None and group.owner == os.getpid()):
        yield group
        return
    if (own := own_rss()) > limit:  # the kernel would kill it first
        raise UsageError(
            f"memory_limit is {format_bytes(limit)}, and this process alone has "
            f"{format_bytes(own)}; raise it, or run the job with flstream simulate"
        )
    group, tried = _entered(limit, proc)
    if group is None:
        raise _impossible([*tried, f"{_SCOPE}: only flstream simulate can start under it"])
    try:
        yield group
    finally:
        group.leave()


def restart(limit: int, proc: Path = _PROC) -> None:
    """Begin this program anew in a group with a limit; return if another program has called it.

    Raises:
        UsageError: No group can be made.
    """
    own = sys.argv[1:]
    if sys.orig_argv[len(sys.orig_argv) - len(own) :] != own:
        return
    # Nothing may end this process until it can remove the group.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    command = [sys.executable, *sys.orig_argv[1:]]
    group, tried = _entered(limit, proc)
    try:
        if group is not None:
            os.execv(sys.executable, command)
        _restart_in_scope(limit, command, tried)
    finally:
        if group is not None:
            group.leave()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def restarted(proc: Path = _PROC) -> Iterator[bool]:
    """Remove the group at the end of the block, where :func:`restart` has begun this program.

    Yields:
        Whether it has.

    Raises:
        UsageError: systemd has made a group without a limit.
    """
    group = present()
    if group is None or group.owner != os.getpid():  # a process of a limited run has started it
        yield False
        return
    _, limit, home, path = os.environ[MEMORY_GROUP].split("\n")
    try:
        if not path:
            _note(int(limit), home, _own_scope(int(limit), proc))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
        yield True
    finally:
        if (group := present()) is not None:
            group.leave()


def remove_leftovers(proc: Path = _PROC) -> None:
    """Remove groups without processes, which runs have left that were killed."""
    group = present()
    parents = [place[2] for place in _places(proc)] if group is None else [group.path.parent]
    for parent in parents:
        with suppress(OSError), _turn(parent):
            _remove_empty(parent)


def _remove_empty(parent: Path) -> None:
    for path in parent.glob(f"{_PREFIX}*"):
        with suppress(OSError):  # it has processes
            path.rmdir()


def _note(limit: int, home: object, path: Path) -> MemoryGroup:
    """Set the variable for this process and those that it starts."""
    os.environ[MEMORY_GROUP] = f"{os.getpid()}\n{limit}\n{home}\n{path}"
    group = present()
    assert group is not None
    return group


def _entered(limit: int, proc: Path) -> tuple[MemoryGroup | None, list[str]]:
    """Enter a new group; return it, or None, and clauses on failed attempts."""
    from tempfile import mkdtemp

    tried = {V2: "cgroup v2: it is not mounted", V1: "cgroup v1: it is not mounted"}
    for files, version, parent, home in _places(proc):
        try:
            if files is V2:
                _delegate(parent, home)
            with _turn(parent):  # else others might take it for a leftover
                _remove_empty(parent)
                path = Path(mkdtemp(prefix=_PREFIX, dir=parent))
                try:
                    (path / files.limit).write_text(str(limit))
                    with suppress(OSError):  # a kernel that does not account for swap
                        (path / files.swap).write_text("0" if files is V2 else str(limit))
                    (path / "cgroup.procs").write_text(str(os.getpid()))
                except OSError:
                    path.rmdir()
                    raise
            return _note(limit, home, path), []
        except OSError as error:
            tried[files] = f"{version}: {error.filename or parent}: {error.strerror or error}"
    return None, list(tried.values())


def _places(proc: Path) -> list[tuple[GroupFiles, str, Path, Path]]:
    """Return for each version its files and name, where a group goes, and this process's group."""
    groups, places = dict[str, str](), dict[int, tuple[GroupFiles, str, Path, Path]]()
    try:
        own_groups, mounts = ((proc / name).read_text() for name in ("cgroup", "mountinfo"))
    except OSError:  # a kernel without control groups, or no /proc
        return []
    for line in own_groups.splitlines():
        _, controllers, group = line.split(":", 2)
        groups.update(dict.fromkeys(controllers.split(","), group))
    for line in mounts.splitlines():
        mount, _, kind = line.partition(" - ")
        root, point = mount.split()[3:5]
        system, _, options = kind.split(" ", 2)
        controller = {"cgroup2": "", "cgroup": "memory"}.get(system, "none")
        if controller not in groups or (controller and controller not in options.split(",")):
            continue
        # A mount shows the groups below its root.
        own = Path(point, groups[controller].removeprefix(root.rstrip("/")).strip("/"))
        if not own.is_dir():
            continue
        if controller:
            places.setdefault(1, (V1, "cgroup v1", own, own))
        else:
            # Beside this process's group, since below one with processes there are no controllers;
            # but for the root.
            parent = own if own == Path(point) else own.parent
            places.setdefault(0, (V2, "cgroup v2", parent, own))
    return [places[order] for order in sorted(places)]


def _delegate(parent: Path, home: Path) -> None:
    """Make sure of version 2's memory controller in the groups below a parent."""
    if "memory" not in (home / "cgroup.controllers").read_text().split():
        raise OSError(f"no memory controller is delegated to {home}")
    if home != parent:
        own_limit = home / V2.limit
        if own_limit.exists() and own_limit.read_text().strip() != "max":
            raise OSError(f"{home} has a limit of its own, which a group beside it would evade")
        # systemd removes a scope without processes, and there would be no way back. Its own group
        # is one that nobody comes back from.
        pids = (home / "cgroup.procs").read_text().split()
        if home.suffix == ".scope" and pids == [str(os.getpid())]:
            raise OSError(f"{home} has no other process, so systemd would end it")
    elif "memory" not in (parent / "cgroup.subtree_control").read_text().split():
        (parent / "cgroup.subtree_control").write_text("+memory")


def _restart_in_scope(limit: int, command: list[str], tried: list[str]) -> NoReturn:
    """Begin this program anew in a scope of the user's systemd; raise a UsageError without one."""
    import shutil
    import subprocess

    flaw, program = "it is not installed", shutil.which("systemd-run") or ""
    for policy in _POLICIES if program else ():
        properties = [f"MemoryMax={limit}", "MemorySwapMax=0", *policy]
        start = [program, *_SCOPE.split()[1:], "--quiet", *(f"--property={p}" for p in properties)]
        try:
            probe = subprocess.run(
                [*start, "--", "true"], capture_output=True, text=True, timeout=_ANSWER_SECONDS
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            flaw = str(error)
            continue
        if probe.returncode == 0:
            os.environ[MEMORY_GROUP] = f"{os.getpid()}\n{limit}\n\n"  # its path is not known yet
            os.execv(program, [*start, "--", *command])
        flaw = " ".join(probe.stderr.split()) or f"it exits with status {probe.returncode}"
    raise _impossible([*tried, f"{_SCOPE}: {flaw}"])


def _own_scope(limit: int, proc: Path) -> Path:
    """Return the folder of this process's group, to which systemd has given the limit."""
    for files, _, _, own in _places(proc):
        with suppress(OSError, ValueError):  # `max` is without a limit
            if int((own / files.limit).read_text()) <= limit:
                return own
    del os.environ[MEMORY_GROUP]
    raise _impossible([f"{_SCOPE}: it has set no limit, for want of the memory controller"])


def _impossible(tried: list[str]) -> UsageError:
    return UsageError(
        f"memory_limit: no control group can be made for the run ({'; '.join(tried)}); have the "
        "memory controller delegated to you (Delegate=memory in a unit of systemd), run as root, "
        "or leave memory_limit out"
    )


@contextmanager
def _turn(parent: Path) -> Iterator[None]:
    """Keep other processes from making and removing groups in a folder."""
    fd = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
