"""Decoupled DiLoCo: its outer steps and its schedule by hand, and after failures and kills."""

import json

import pytest
import torch
from flows import records, result
from safetensors.torch import load_file
from test_diloco import MODEL as NET
from test_diloco import SCRIPT
from test_virtual_clock import CRASHES, timeline
from training_scripts import QUIET, adding, noisy, of_kind, results

from flstream.job import JobError
from flstream.telemetry.events import SiteFailed

VIRTUAL = "time={clock=virtual, seconds_per_example=1 s}"
PROCESSES = "engine.type=local"
COMES_AND_GOES = "devices={a {available {up_for=40 s, down_for=8 s}}}"
S = 1_000_000_000


def decoupled(args):
    return f"workflow={{type=decoupled_diloco, args{{{args}}}}}"


def rows(run):
    """Site, beginning and end of each training in the order of answers, in seconds."""
    return [
        (site, began / S, (began + time) / S, *failures.values())
        for _, began, _, times, failures in timeline(run)
        for site, time in times.items()
    ]


def added(run, number):
    """The difference of the model from the first one, after a round."""
    begun, model = (load_file(run.directory.checkpoint(n))["b"] for n in (0, number))
    return model - begun


# Site n takes n seconds, adds n, and has the weight n. An outer step waits for two, and a second
# more for others: that is up to 3 s, 5 s and 7 s. Of two answers at once, that of the earlier start
# comes first: the late one, whose site begins anew at once.
BY_HAND = [
    *[("site-1", 0, 1), ("site-2", 0, 2), ("site-3", 0, 3)],
    *[("site-4", 0, 4), ("site-1", 3, 4), ("site-2", 3, 5)],
    *[("site-3", 3, 6), ("site-1", 5, 6), ("site-2", 5, 7)],
]


@pytest.mark.parametrize("weights", ["examples", "equal"])
def test_the_schedule_and_the_outer_steps_are_those_by_hand(jobs, weights):
    args = "quorum=2, grace=1 s, learning_rate=0.5, momentum=0.25"
    how = [VIRTUAL, QUIET, "clients.count=4", "rounds=3"]
    run = jobs.run(adding({}), *how, decoupled(f"{args}, weights={weights}")).finished()
    assert rows(run) == BY_HAND
    assert run.summary.simulated_seconds == 7.0
    value = velocity = 0.0
    for number, sites in enumerate([(1, 2, 3), (1, 2, 4), (1, 2, 3)], 1):
        shares = [site if weights == "examples" else 1 for site in sites]
        products = [share * site for share, site in zip(shares, sites, strict=True)]
        gradient = sum(products) / sum(shares)
        velocity = 0.25 * velocity + gradient
        value += 0.5 * (gradient + 0.25 * velocity)
        difference = added(run, number)
        torch.testing.assert_close(difference, torch.full_like(difference, value))


AWAY = "it went away (devices.a.available)"


def both_needed(jobs, trace, rounds):
    """A run of two learners, both of which a step needs, and one of which comes and goes."""
    (jobs.folder / "there.csv").write_text("site,seconds,available\n" + trace)
    device = "devices={a {available=there.csv}}"
    how = [VIRTUAL, QUIET, "clients.count=2", f"rounds={rounds}", device]
    return jobs.run(adding({}), *how, decoupled("quorum=2")).finished()


def test_an_outer_step_of_all_learners_waits_for_the_repair_of_one_that_is_away(jobs):
    run = both_needed(jobs, "site-2,0,1\nsite-2,3,0\nsite-2,5,1\nsite-2,1000,0\n", 2)
    assert rows(run) == [
        *[("site-1", 0, 1), ("site-2", 0, 2)],
        *[("site-1", 2, 3), ("site-2", 2, 3, AWAY), ("site-2", 5, 7)],
    ]
    assert not of_kind(run, SiteFailed)[1:]


def test_a_learner_that_comes_back_begins_at_once_and_others_train_meanwhile(jobs):
    run = both_needed(jobs, "site-1,0,1\nsite-1,0.5,0\nsite-1,1.25,1\nsite-1,1000,0\n", 1)
    assert rows(run) == [("site-1", 0, 0.5, AWAY), ("site-2", 0, 2), ("site-1", 1.25, 2.25)]


FAILING = [VIRTUAL, COMES_AND_GOES, "clients.count=5", "rounds=8", decoupled("grace=1 s")]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, jobs_in):
    return jobs_in(tmp_path_factory.mktemp("decoupled")).run(noisy(), *FAILING).finished()


@pytest.mark.parametrize("workers", [[], ["clients.parallel=2"]])
def test_workers_change_neither_bits_nor_times(jobs, undisturbed, workers):
    assert any(failures for *_, failures in timeline(undisturbed))
    run = jobs.run(noisy(), *FAILING, PROCESSES, *workers).finished()
    assert results(run) == results(undisturbed)
    assert timeline(run) == timeline(undisturbed)


def cut(run, effects):
    """Cut a run's journal after some effects, as the kill of its server leaves it."""
    lines = run.directory.events.read_bytes().splitlines(keepends=True)
    places = [n for n, line in enumerate(lines, 1) if json.loads(line)["kind"] == "effect"]
    run.directory.events.write_bytes(b"".join(lines[: places[effects - 1]]))


@pytest.mark.parametrize("share", [0.1, 0.5, 0.95])
def test_a_run_whose_server_is_killed_ends_in_the_same_bits_and_times(jobs, undisturbed, share):
    run = jobs.run(noisy(), *FAILING).finished()
    cut(run, round(share * len(records(run))))
    resumed = jobs.go_on(run, noisy(), *FAILING).finished()
    assert results(resumed) == results(undisturbed)
    assert timeline(resumed) == timeline(undisturbed)


def test_a_learner_that_is_several_outer_steps_late_keeps_its_moments(jobs):
    rate = 'model={factory="model:Net"}', decoupled("quorum=1, inner_steps=2")
    script = SCRIPT.replace("examples=1 + ", "examples=1 + 3 * ")
    run = jobs.run(script, VIRTUAL, QUIET, *rate, "rounds=9", model=NET).finished()
    started = [record.round for record in records(run) if record.request.endswith("site-2)")]
    assert started == [1, 4, 8]
    assert "new moments" not in (run.directory.site("site-2") / "log.txt").read_text()


def taken(run):
    """The sites in the order in which their answers were taken; None where none came in time."""
    return [result(record).get("site") for record in records(run) if record.name == "next"]


def test_learners_that_are_killed_begin_again_and_a_resume_keeps_to_the_order(jobs):
    how = ["clients.count=3", PROCESSES, QUIET, decoupled("quorum=3, grace=1 s")]
    run = jobs.run(noisy(CRASHES), *how, "rounds=4").finished()
    assert {failure.signal for failure in run.summary.failures} == {"SIGKILL"}
    order = taken(run)
    assert order.count("site-2") == 1 + 4
    # Up to a synced effect: of later answers, the files of the updates are gone by now.
    cut(run, max(record.effect for record in records(run) if record.round == 2))
    before = taken(run)
    again = jobs.go_on(run, noisy(CRASHES), *how, "rounds=4").finished()
    assert taken(again)[: len(before)] == before == order[: len(before)]
    assert again.summary.rounds_completed == 4


LIMITS = """
import math

def flow(run):
    model = run.initial_model()
    for number in run.rounds():
        see(run.next(max_wait=2.5), run.next(max_wait=math.inf) if AWAY else None)
        for site in run.sites:
            run.start(site, model)
        first = run.next(max_wait=1)
        see(first.site, run.next(max_wait=0.5), run.next(max_wait=0.5, since=first))
        second, third = (run.next(max_wait=2, since=first) for _ in range(2))
        see(second.site, third.site)
        break_off()
        model = run.fold(model, [first, second, third])
    return model
"""


def test_a_limit_counts_from_now_or_from_an_answer_and_is_replayed(flows):
    how = [VIRTUAL, QUIET, "clients.count=3", "rounds=1"]
    text = LIMITS.replace("AWAY", "False")
    whole = flows.finish(text, *how)
    seen = flows.seen()
    # The first answer comes 3.5 s after the beginning, the next ones 1 and 2 s after it.
    assert seen == ["None, None", "'site-1', None, None", "'site-2', 'site-3'"]
    assert [row[1:] for row in rows(whole)] == [(2.5, 3.5), (2.5, 4.5), (2.5, 5.5)]
    resumed = flows.resume(flows.broken(text, *how), text, *how)
    assert flows.seen() == seen * 2
    assert results(resumed) == results(whole)
    assert timeline(resumed) == timeline(whole)


def test_on_the_wall_clock_a_wait_without_an_answer_is_replayed(flows):
    text = """
    for site in run.sites:
        run.start(site, model)
    first = run.next()
    see(first.site, run.next(max_wait=0.05, since=first))
    break_off()
    model = run.fold(model, [first])
    """
    how, script = (
        [QUIET, "rounds=1", PROCESSES],
        noisy('site == "site-2" and threading.Event().wait()'),
    )
    flows.resume(flows.broken(text, *how, script=script), text, *how, script=script)
    assert flows.seen() == ["'site-1', None"] * 2


def test_with_nobody_in_flight_who_could_come_back_a_wait_is_refused(flows):
    error = flows.fail(LIMITS.replace("AWAY", "True"), VIRTUAL, QUIET, "rounds=1")
    assert "run.next() was called with no training in flight, so no answer can come" in error


def test_a_quorum_of_more_learners_than_there_are_is_a_mistake_of_the_job(jobs):
    with pytest.raises(JobError, match=r"workflow.args.quorum: .*at most clients.count.*2"):
        jobs.run(noisy(), decoupled("quorum=3"))
