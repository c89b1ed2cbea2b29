"""Running a job's learner: one object a process, which works for one site after another."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from typing import Any

from flstream.client.code import LearnerClass
from flstream.client.fl_model import FLModel
from flstream.client.messages import Failed, SiteTask
from flstream.client.run_script import sentence
from flstream.client.seeding import seed_everything
from flstream.client.session import Session, enter
from flstream.client.work import Work
from flstream.client.worker import Worker
from flstream.errors import ClientError
from flstream.job.code import find_named


def serve_learner(worker: Worker, code: LearnerClass) -> None:
    """Work with one object for one site after another, until the server says that all is done."""
    serving = _Serving(worker, code)
    if not serving.start():
        return
    while (task := worker.next_task()) is not None:
        work = Work(worker, task)
        for site in task.sites:
            serving.serve(work, site)
        work.finish()
        del work


class _Serving:
    def __init__(self, worker: Worker, code: LearnerClass) -> None:
        self._worker = worker
        self._code = code
        self._learner: Any = None
        self._prepared: str | None = None

    def start(self) -> bool:
        """Make the object, and report to the server."""
        try:
            made = find_named(self._code.named)
            if not callable(made):
                raise ClientError(f"train.learner {self._code.named}: there is no such class")
            self._learner = made(**self._code.arguments)
        except BaseException as error:
            traceback.print_exc()
            self._worker.send(Failed("", 0, sentence(error, self._source)))
            return False
        self._worker.ready()
        return True

    def serve(self, work: Work, site: SiteTask) -> None:
        """Give a site its turn. What it raises is that site's failure alone."""
        pid = os.getpid()
        try:
            self._work_for(work, site)
        except BaseException as error:
            traceback.print_exc()
            if work.site is not None and os.getpid() == pid:
                work.fail(sentence(error, self._source))
        if os.getpid() != pid:
            os._exit(1)  # a child that the learner forked ends here

    def _work_for(self, work: Work, site: SiteTask) -> None:
        learner = self._learner
        learner.site = work.begin(site)
        if learner.site is None:
            return
        enter(Session(self._worker, work))
        if self._prepared != site.site:
            self._prepared = None
            # The same for a process that is set up for the first time, and for one that was set up
            # for this site before.
            seed_everything(site.seed)
            learner.setup()
            self._prepared = site.site
        kind = work.task.kind
        answer = (learner.train if kind == "train" else learner.evaluate)(work.receive())
        if not isinstance(answer, FLModel):
            raise ClientError(
                f"{type(learner).__name__}.{kind}() returned a {type(answer).__name__}; "
                "it must return an FLModel"
            )
        work.answer(answer)

    @property
    def _source(self) -> Path:
        """The file in which the class is, to find its lines in a traceback."""
        where = self._code.named.rpartition(":")[0]
        return Path(getattr(sys.modules.get(where), "__file__", None) or where)
