"""Execution of tasks by a script, run once for a site, or for each task."""

from __future__ import annotations

import gc
import os
import runpy
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from flstream.client.received_values import NO_MODEL
from flstream.client.seeding import seed_everything, start_seed
from flstream.client.session import Session, decline, enter
from flstream.client.site_folder import enter_work_folder
from flstream.worker.code import ScriptCode
from flstream.worker.code_errors import CodeFailure, run_code
from flstream.worker.site_turn import SiteTurn
from flstream.worker.turns import SiteTurns, serve_turns
from flstream.worker.worker import Worker
from flstream.worker.worker_info import WorkerInfo

_TAIL_BYTES = 4096
_UNANSWERED = "{name} ended without answering the task; send() an FLModel for each task"


def serve_own_site(worker: Worker, script: ScriptCode) -> None:
    """Run the script once, in a site's own process; the script asks for tasks.

    Args:
        worker: The worker.
        script: The script and its arguments.
    """
    sys.path.insert(0, str(script.path.parent))
    turns = SiteTurns(worker)
    while True:
        session = Session(turns)
        failure = run_script(session, worker.info, script.path, _words(script, worker, session))
        if failure is None or not session.has_declined:
            break
        # The task is answered, and the next one may be another kind.
    if failure is not None:
        turns.fail(failure)


def serve_sites(worker: Worker, script: ScriptCode) -> None:
    """Run the script once for each site and task, until the server stops the worker.

    Imported modules stay in memory from one run of the script to the next; its variables do not.

    Args:
        worker: The worker.
        script: The script and its arguments.
    """
    sys.path.insert(0, str(script.path.parent))
    worker.ready()
    worker.expect_imports()
    imported = False

    def run(turns: SiteTurns, turn: SiteTurn) -> CodeFailure | None:
        nonlocal imported
        session = Session(turns, turn)
        failure = run_script(session, worker.info, script.path, _words(script, worker, session))
        # The script's functions and variables refer to each other in cycles, so its model would
        # stay in memory beside the next one.
        gc.collect()
        if not imported:
            # The imported modules are left: scanning them takes tens of milliseconds each time.
            gc.freeze()
            imported = True
        return failure

    serve_turns(worker, run)


def _words(code: ScriptCode, worker: Worker, session: Session) -> list[str]:
    return code.words(worker.info.site_args.get(session.site, {}))


def run_script(
    session: Session, info: WorkerInfo, script: Path, words: Sequence[str]
) -> CodeFailure | None:
    """Run a script as the interpreter does, in its site's working folder.

    Rank 0 of a site is to answer all tasks that its session has for it.

    Args:
        session: The session.
        info: Facts about the run and the worker.
        script: Path of the script.
        words: Words of its command line.

    Returns:
        Why it failed; None if it did not.
    """
    enter(session)
    site, sys.argv = session.site, [str(script), *words]

    def run() -> CodeFailure | None:
        with suppress(OSError):  # its tasks fail for the same reason
            enter_work_folder(info.sites_folder, site)
        # Until its first task, which has a seed of its own.
        seed_everything(start_seed(info.seed, site))
        try:
            runpy.run_path(str(script), run_name="__main__")
        except SystemExit as error:
            return _exit_failure(error.code, script)
        except Exception:
            if not session.is_declined:
                raise
            return CodeFailure(NO_MODEL)
        return None

    failure = run_code(run, script, info, site)
    if session.turns.place.rank == 0:
        if failure is None and session.kind is not None:
            failure = CodeFailure(_UNANSWERED.format(name=script.name))
        if session.is_declined:
            session.has_declined = True
            decline(session.turn)
    return failure


def _exit_failure(code: object, script: Path) -> CodeFailure | None:
    """Describe how a script ended itself; None if nothing was wrong."""
    if code in (None, 0):
        return None
    if isinstance(code, str):
        print(code, file=sys.stderr)
        return CodeFailure(f"{script.name} ended itself: {code}", 1)  # as the interpreter does
    sys.stderr.flush()
    # argparse ends so, and has just printed what is wrong with the arguments.
    complaint = last_line(Path("/proc/self/fd/2")) if code == 2 else ""
    reason = f"{script.name} exited with status {code}" + (f": {complaint}" if complaint else "")
    return CodeFailure(reason, code & 0xFF if isinstance(code, int) else 1)


def last_line(path: Path, start: int = 0) -> str:
    """Return the last non-blank line of a text file; empty without one.

    Args:
        path: Path of the file.
        start: Bytes at the beginning of the file that do not count.
    """
    try:
        with path.open("rb") as file:
            file.seek(max(start, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
