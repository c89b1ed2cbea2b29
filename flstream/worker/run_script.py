"""Execution of tasks by a script, run once for a site, or for each task."""

from __future__ import annotations

import gc
import json
import os
import runpy
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from flstream.client.received_values import NO_MODEL
from flstream.client.seeding import seed_everything, start_seed
from flstream.client.session import Session, decline, enter
from flstream.job import Job
from flstream.worker.site_turn import SiteTurn
from flstream.worker.turns import SiteTurns, serve_turns
from flstream.worker.user_code import CodeFailure, enter_work_folder, run_code
from flstream.worker.worker import Worker
from flstream.worker.worker_info import WorkerInfo

_TAIL_BYTES = 4096
_UNANSWERED = "{name} ended without answering the task; send() an FLModel for each task"


def serve_own_site(worker: Worker) -> None:
    """Run the script once, in a site's own process; the script asks for tasks."""
    import_beside_script(worker.info.job)
    turns = SiteTurns(worker)
    while True:
        session = Session(turns)
        failure = run_script(session, worker.info)
        if failure is None or not session.has_declined:
            break
        # The task is answered, and the next one may be another kind.
    if failure is not None:
        turns.fail(failure)


def serve_sites(worker: Worker) -> None:
    """Run the script once for each site and task, until the server stops the worker.

    Imported modules stay in memory from one run of the script to the next; its variables do not.
    """
    import_beside_script(worker.info.job)
    worker.ready()
    worker.expect_imports()
    imported = False

    def run(turns: SiteTurns, turn: SiteTurn) -> CodeFailure | None:
        nonlocal imported
        session = Session(turns, turn)
        failure = run_script(session, worker.info)
        # The script's functions and variables refer to each other in cycles, so its model would
        # stay in memory beside the next one.
        gc.collect()
        if not imported:
            # The imported modules are left: scanning them takes tens of milliseconds each time.
            gc.freeze()
            imported = True
        return failure

    serve_turns(worker, run)


def import_beside_script(job: Job) -> None:
    """Find modules first beside the script, as the interpreter does."""
    assert job.train.script is not None
    sys.path.insert(0, str(job.train.script.parent))


def script_words(job: Job, site: str) -> list[str]:
    """Return the words of the script's command line at a site.

    Arguments of the site alone take the place of others of their name.
    """
    args, own = job.train.args, job.clients.args.get(site, {})
    if isinstance(args, str):
        return [*shlex.split(args), *command_line(own)]
    return command_line({**args, **own})


def command_line(args: Mapping[str, Any]) -> list[str]:
    """Return a script's arguments as the words of a command line.

    Args:
        args: Values by name. True gives ``--key`` alone, False and None give nothing, a list gives
            ``--key a b``; values other than strings are written as JSON.
    """
    words = []
    for key, value in args.items():
        if value is None or value is False:
            continue
        values = [] if value is True else value if isinstance(value, list) else [value]
        texts = list(map(_word, values))
        if len(texts) == 1 and texts[0].startswith("-"):
            words.append(f"--{key}={texts[0]}")  # which argparse would take for another option
        else:
            words += [f"--{key}", *texts]
    return words


def _word(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def run_script(
    session: Session, info: WorkerInfo, words: Sequence[str] | None = None
) -> CodeFailure | None:
    """Run the script as the interpreter does, in its site's working folder.

    Rank 0 of a site is to answer all tasks that its session has for it.

    Args:
        session: The session.
        info: Facts about the run and the worker.
        words: Words of the script's command line; None for those of the job.

    Returns:
        Why it failed; None if it did not.
    """
    enter(session)
    script, site = info.job.train.script, session.site
    assert script is not None
    sys.argv = [str(script), *(script_words(info.job, site) if words is None else words)]

    def run() -> CodeFailure | None:
        with suppress(OSError):  # its tasks fail for the same reason
            enter_work_folder(info.sites_folder, site)
        # Until its first task, which has a seed of its own.
        seed_everything(start_seed(info.job.seed, site))
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
