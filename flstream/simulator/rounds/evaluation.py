"""One evaluation: sites score a model, and what they find is gathered."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flstream.client.messages import Scored, ScoredSite
from flstream.job import Job
from flstream.simulator.crew.batches import Batch, Batches
from flstream.simulator.crew.crew import Crew, Lost, Retired, Say
from flstream.simulator.crew.listening import Heard, Replaced
from flstream.simulator.crew.worker import Worker
from flstream.simulator.rounds.failures import brief
from flstream.simulator.rounds.gathering import Gathering
from flstream.simulator.rounds.plan import RoundPlan
from flstream.simulator.rounds.reporting import TaskReport, report_heard, report_replaced
from flstream.simulator.rounds.tasks import Arrived, Assignment, Given, ask
from flstream.streaming.service import DownloadService
from flstream.telemetry.events import AnyEvent, SiteFailed, Transfer


class Evaluation:
    """Asks sites to score a model.

    Args:
        job: how many have to.
        service: offers the model.
        emit: takes events.
        cohort: the sites.
        plan: how the task is spread over workers.
    """

    def __init__(
        self,
        job: Job,
        service: DownloadService,
        emit: Callable[[AnyEvent], None],
        cohort: Sequence[str],
        plan: RoundPlan,
    ) -> None:
        self._service = service
        self._emit = emit
        self._cohort = cohort
        self._plan = plan
        self._least = min(job.clients.min_updates or len(cohort), len(cohort))

    def run(self, crew: Crew, assignment: Assignment) -> tuple[Sequence[ScoredSite], Transfer]:
        """Do it.

        Returns:
            What the sites found, in their order, and the cost of the model's way to them.

        Raises:
            SimulationError: too few sites are left; the message names the others.
        """
        cohort, plan, emit = self._cohort, self._plan, self._emit
        task = f"evaluate the model of round {assignment.round}"
        gathering: Gathering[ScoredSite] = Gathering(task, cohort, self._least)
        report = TaskReport("evaluate", assignment.round, assignment.model.layout.nbytes, emit)
        own = {site: site for site in cohort} if plan.own else None
        batches = Batches(cohort, plan.sites, own=own)
        workers = cohort if plan.own else crew.names[: -(-len(cohort) // plan.sites)]

        def perform(worker: Worker, sites: Batch, say: Say) -> None:
            answer = ask(assignment, crew, self._service, worker, sites, say, Scored)
            for scored in answer.sites:
                say(scored, scored.site)

        for said in crew.perform(batches, perform, workers):
            match said:
                case Heard():
                    report_heard(said, emit)
                case Replaced() | Retired():
                    report_replaced(said, emit)
                case Given():
                    report.given(said)
                case Arrived():
                    report.arrived(said)
                case ScoredSite():
                    report.answered(said.site)
                    gathering.answer(said.site, said)
                case Lost(site, said_why):
                    reason = brief(said_why)
                    emit(SiteFailed(round=assignment.round, site=site, reason=reason))
                    gathering.fail(site, reason)
                case None:
                    report.progress()
        assert gathering.settled == len(cohort)
        return list(gathering.in_order.values()), report.down
