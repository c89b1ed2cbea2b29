"""Whole runs by each sampler: sites are chosen by their answers, and a resume chooses the same."""

import pytest
from training_scripts import QUIET, cohorts, noisy, results

from flstream.job.clients_section import SAMPLERS
from flstream.simulation.dry_run import outline_of

MINE = """
class Oldest:
    def __init__(self, reverse=False):
        self.reverse = reverse

    def sample(self, sites, count, history):
        def rank(site):
            return history.sites[site].last_round if site in history.sites else 0

        return sorted(sites[:: -1 if self.reverse else 1], key=rank)[:count]


class Seen:
    def sample(self, sites, count, history):
        for name, site in sorted(history.sites.items()):
            tasks = site.times_asked, site.times_failed, site.last_round
            print("SEEN", history.round, name, *tasks, site.examples)
            assert site.loss == (None if site.examples is None else 10 * site.examples)
            assert site.seconds is None
        return sorted(sites, reverse=True)[:count]
"""
SIX = ["clients.count=6", "clients.per_round=3", "rounds=5", QUIET]
KINDS = [*sorted(SAMPLERS), '{type="mine.py:Oldest", args{reverse=true}}']
ROUND = """
model = run.fold(model, run.train(model, run.sample(number)))
break_off(str(number))
"""


@pytest.fixture(autouse=True)
def mine(jobs):
    (jobs.folder / "mine.py").write_text(MINE)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_is_resumed_samples_the_same_sites(flows, kind):
    how = [*SIX, f"clients.sampler={kind}"]
    whole = flows.finish(ROUND, *how)
    drawn = cohorts(whole)
    assert [len(cohort) for cohort in drawn] == [3] * 5
    resumed = flows.resume(flows.broken(ROUND, *how, place="3"), ROUND, *how)
    assert results(resumed) == results(whole)
    assert cohorts(resumed) == drawn


STARTED = """
for site in run.sample(number):
    run.start(site, model)
answers = []
while run.in_flight:
    answers.append(run.next())
break_off(str(number))
model = run.fold(model, [answer for answer in answers if answer.ok])
"""


@pytest.mark.parametrize("text", [ROUND, STARTED], ids=["train", "start"])
def test_a_sampler_sees_answers_and_failures_also_on_replay(flows, capfd, text):
    script = noisy(
        "index = int(site[-1])\n"
        "metrics['loss'] = 10.0 * index\n"
        "if site == 'site-4' and number == 1: raise KeyError('oops')",
    )
    how = ["clients.count=4", "clients.per_round=2", "clients.min_updates=1", "rounds=3", QUIET]
    how.append('clients.sampler="mine.py:Seen"')
    run = flows.broken(text, *how, script=script, place="2")
    flows.resume(run, text, *how, script=script)
    seen = [line.removeprefix("SEEN ") for line in capfd.readouterr().out.splitlines()]
    second = ["2 site-3 1 0 1 3.0", "2 site-4 1 1 1 None"]
    third = ["3 site-3 2 0 2 3.0", "3 site-4 2 1 2 4.0"]
    assert [line for line in seen if line[0] in "23"] == [*second, *second, *third]


def test_a_sampler_that_chooses_wrong_sites_ends_the_run_by_its_name(jobs):
    text = "class Wrong:\n    def sample(self, sites, count, history): return sites[:1]\n"
    (jobs.folder / "wrong.py").write_text(text)
    run = jobs.run(noisy(), *SIX, 'clients.sampler="wrong.py:Wrong"')
    assert run.summary.status == "failed"
    words = "clients.sampler wrong.py:Wrong returned 1 of 6 sites for round 1; return 3"
    assert words in run.summary.error


def test_a_dry_run_calls_no_sampler(jobs):
    (jobs.folder / "own.py").write_text("raise SystemExit('imported')\nclass Sampler: ...\n")
    job = jobs.make("", 'clients.sampler="own.py:Sampler"', "workflow.type=diloco")
    assert outline_of(job).flaw == ""
