"""Running a job's training script: once in a process of its site's own, or once a site and task."""

from __future__ import annotations

import gc
import os
import runpy
import sys
import traceback
from pathlib import Path

from flstream.client.code import Script
from flstream.client.session import Session, enter
from flstream.client.work import Work
from flstream.client.worker import Worker

_UNANSWERED = "{name} ended without answering the task; send() an FLModel for each task"


def serve_own_site(worker: Worker, script: Script) -> None:
    """Run the script of the site whose process this is. It asks for tasks itself."""
    session = Session(worker)
    enter(session)
    _prepare(script)
    failure = _run(script.path)
    if failure is None and session.kind is not None:
        failure = _UNANSWERED.format(name=script.path.name)
    if failure is not None:
        session.fail(failure)


def serve_sites(worker: Worker, script: Script) -> None:
    """Run the script once for each site and task, until the server says that the run is over.

    What it imports stays in memory from one time to the next; its own variables do not.
    """
    _prepare(script)
    worker.ready()
    worker.expect_imports()
    imported = False
    while (task := worker.next_task()) is not None:
        work = Work(worker, task)
        for site in task.sites:
            if work.begin(site) is None:
                continue
            enter(Session(worker, work))
            failure = _run(script.path)
            # What it answered before it failed counts, and may be under way already.
            if work.site is not None:
                work.fail(failure or _UNANSWERED.format(name=script.path.name))
            # The functions of a script and its variables refer to each other, so that its model
            # would stay in memory beside the next one.
            gc.collect()
            if not imported:
                # What is left is what it has imported: tens of milliseconds to look at each time.
                gc.freeze()
                imported = True
        work.finish()
        del work


def _prepare(script: Script) -> None:
    sys.argv = [str(script.path), *script.arguments]
    sys.path.insert(0, str(script.path.parent))


def _run(script: Path) -> str | None:
    """Run a script as the interpreter would; if it fails, say why in one sentence."""
    pid = os.getpid()
    failure = None
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as error:
        if error.code not in (None, 0):
            failure = f"{script.name} exited with status {error.code}"
    except BaseException as error:
        traceback.print_exc()
        failure = sentence(error, script)
    if os.getpid() != pid:
        os._exit(0 if failure is None else 1)  # a child that the script forked ends here
    return failure


def sentence(error: BaseException, source: Path) -> str:
    """What was raised, and the line of the training code from which it came."""
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == str(source)
    ]
    where = f"{source.name}, line {lines[-1]}" if lines else source.name
    said = f": {error}" if str(error) else ""
    return f"{where} raised {type(error).__name__}{said}"
