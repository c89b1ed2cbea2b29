"""Runs on the virtual clock: the same bits and times whatever really happens, and by hand."""

import heapq
from fractions import Fraction

import pytest
import torch
from flows import records, result
from safetensors.torch import load_file
from training_scripts import LARGE, QUIET, adding, noisy, plain, results

from flstream.runs.journal import Journal, read_history
from flstream.server import training_effects
from flstream.telemetry.events import EffectDone, RoundStarted, SiteUpdate

VIRTUAL = "time.clock=virtual"
PROCESSES = "engine.type=local"
BUFFER = "workflow={type=fedbuff, args{buffer_size=2, concurrency=3, staleness=hinge}}"
OVER = ["clients.per_round=3", "stragglers={policy=over_selection, extra=1}"]
MS = 1_000_000


def timeline(run):
    """When each training began, ended, and had its answers, by its effect."""
    rows = []
    for record in records(run):
        trained = result(record)
        if isinstance(trained, dict):
            trained = trained.get("train") or trained
            if "times" in trained:
                times = trained.get("began", 0), trained["ended"], trained["times"]
                rows.append((record.effect, *times, trained.get("failures", {})))
    return rows


HOWS = [[PROCESSES, "clients.parallel=2"], [PROCESSES]]


@pytest.mark.parametrize("kind", [[BUFFER], OVER, [BUFFER, LARGE]], ids=["buffer", "over", "large"])
def test_workers_and_chunks_change_neither_bits_nor_times(jobs, kind):
    how = [VIRTUAL, "clients.count=5", "rounds=3", *kind]
    alone = jobs.run(noisy(), *how).finished()
    assert len(timeline(alone)) >= 3
    for settings in HOWS:
        chunk = "streaming.tensor_download_chunk_size=4 KiB"
        other = jobs.run(noisy(), *how, *settings, chunk).finished()
        assert results(other) == results(alone)
        assert timeline(other) == timeline(alone)
    assert alone.summary.simulated_seconds == timeline(alone)[-1][2] / 1e9


def replayed(buffer, concurrency, rounds, count, weight, fold):
    """The model's added number after some rounds of sites that add theirs, by plain arithmetic.

    Site n takes n milliseconds, and sites are drawn from those that are idle.
    """
    import random

    draw = random.Random(f"flstream/workflow/{11}/0/sites")
    idle, flight, values, now, order = list(range(count)), [], [0.0], 0, 0
    for _ in range(rounds):
        taken = []
        while len(taken) < buffer:
            while idle and len(flight) < concurrency:
                site = draw.choice(idle)
                place = idle.index(site)
                last = idle.pop()
                if last != site:
                    idle[place] = last
                order += 1
                heapq.heappush(flight, (now + (site + 1) * MS, order, site, len(values) - 1))
            now, _, site, version = heapq.heappop(flight)
            idle.append(site)
            taken.append((site + 1, version))
        staleness = [len(values) - 1 - version for _, version in taken]
        values.append(fold(values, taken, [weight(each) for each in staleness]))
    return values[-1], now


def mean_of_buffer(values, taken, weights):
    return values[-1] + sum(w * n for w, (n, _) in zip(weights, taken, strict=True)) / len(taken)


def mixed(values, taken, weights):
    [(number, version)], [weight] = taken, weights
    return values[-1] + weight * (values[version] + number - values[-1])


@pytest.mark.parametrize(
    ("kind", "buffer", "weight", "fold"),
    [
        ("fedbuff, args{buffer_size=3, concurrency=4}", 3, lambda t: (1 + t) ** -0.5, None),
        (
            "fedbuff, args{buffer_size=2, staleness=hinge, staleness_bound=1}",
            2,
            lambda t: 1.0 if t <= 1 else 1 / (1 + 0.5 * (t - 1)),
            None,
        ),
        ("fedasync, args{alpha=0.5, concurrency=4}", 1, lambda t: 0.5 * (1 + t) ** -0.5, mixed),
        ("fedasync, args{alpha=0.5, staleness=constant}", 1, lambda t: 0.5, mixed),
    ],
)
def test_asynchronous_workflows_come_to_what_their_papers_say(jobs, kind, buffer, weight, fold):
    how = [VIRTUAL, QUIET, f"workflow={{type={kind}}}", "clients.count=5", "rounds=4", "seed=11"]
    run = jobs.run(adding({}), *how, "clients.per_round=4").finished()
    added, now = replayed(buffer, 4, 4, 5, weight, fold or mean_of_buffer)
    first = load_file(run.directory.checkpoints / "round-0000.safetensors")
    last = load_file(run.directory.final_model)
    torch.testing.assert_close(last["b"] - first["b"], torch.full_like(last["b"], added))
    assert timeline(run)[-1][2] == now


def test_an_update_that_is_too_old_is_left_out(jobs):
    kind = "workflow={type=fedasync, args{concurrency=4, max_staleness=0, evaluate_every=0}}"
    run = jobs.run(adding({}), VIRTUAL, kind, "clients.count=4", "rounds=3").finished()
    folds = [result(each) for each in records(run) if each.name == "fold"]
    answers = [each for each in records(run) if each.name == "next"]
    assert len(folds) == 3 < len(answers)


@pytest.mark.parametrize("kind", ["fedbuff, args{buffer_size=2}", "fedasync", "decoupled_diloco"])
def test_a_site_that_always_fails_is_asked_no_more_though_failures_take_no_time(jobs, kind):
    script = noisy("if site == 'site-2': raise ValueError('broken')\nflare.work(3)")
    how = [VIRTUAL, QUIET, f"workflow={{type={kind}}}", "time.work=declared"]
    run = jobs.run(script, *how, "clients.count=4").finished()
    assert run.summary.benched == ["site-2"]
    assert [failure.site for failure in run.summary.failures] == ["site-2"] * 2


def test_devices_that_are_never_there_for_long_enough_end_the_run(jobs, monkeypatch):
    monkeypatch.setattr(training_effects, "_MOST_LOST", 30)
    there = 'devices.a.available={windows=["00:01-00:02"]}'
    how = [VIRTUAL, BUFFER, there, "time.seconds_per_example=1 h", "clients.count=4"]
    run = jobs.run(adding({}), *how)
    assert "30 trainings in a row have come to nothing, the last one of site-" in run.summary.error
    assert "it went away (devices.a.available)" in run.summary.error


def test_several_updates_of_a_site_in_a_fold_are_counted(jobs):
    kind = "workflow={type=fedbuff, args{buffer_size=6, concurrency=3}}"
    run = jobs.run(adding({}), VIRTUAL, QUIET, kind, "clients.count=3", "rounds=2").finished()
    history = read_history(run.directory.events)
    assert sum(site.updates for site in history.sites.values()) == 12
    assert history.sites["site-1"].updates > 2


def test_a_limit_of_the_clock_is_a_failure_as_on_the_wall(jobs):
    how = [VIRTUAL, QUIET, "clients.count=3", "clients.min_updates=2", "rounds=3"]
    run = jobs.run(adding({}), *how, "clients.round_timeout=2.5 ms").finished()
    assert run.summary.benched == ["site-3"]
    assert {(each.site, each.late) for each in run.summary.failures} == {("site-3", False)}


CRASHES = """
import os
mark = folder + "/crashed"
if site == "site-2" and not os.path.exists(mark):
    open(mark, "w").close()
    os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("kind", [[], [BUFFER]], ids=["rounds", "buffer"])
@pytest.mark.parametrize("workers", [[], ["clients.parallel=2"]], ids=["own", "shared"])
def test_a_process_that_dies_costs_no_simulated_time(jobs, kind, workers):
    how = [VIRTUAL, "clients.count=3", "rounds=2", PROCESSES, *workers, *kind]
    script = noisy(CRASHES)
    run = jobs.run(script, *how).finished()
    undisturbed = jobs.run(noisy(), *how).finished()
    assert results(run) == results(undisturbed)
    assert timeline(run) == timeline(undisturbed)
    assert any("was started again: " in warning for warning in run.summary.warnings)
    assert not run.summary.failures


def test_a_site_whose_process_dies_each_time_has_failed_after_one_example(jobs):
    script = noisy('import os\nif site == "site-2": os.kill(os.getpid(), 9)')
    how = [VIRTUAL, "clients.count=3", "clients.min_updates=2", "rounds=1", PROCESSES]
    run = jobs.run(script, *how).finished()
    [failure] = run.summary.failures
    assert (failure.site, failure.signal) == ("site-2", "SIGKILL")
    assert timeline(run)[0][1:4] == (0, 3 * MS, {"site-1": MS, "site-2": MS, "site-3": 3 * MS})


FLOW = """
def flow(run):
    model, draw = run.initial_model(), run.random("sites")
    for number in run.rounds():
        answers = []
        while len(answers) < 2:
            while run.idle and len(run.in_flight) < 3:
                run.start(draw.choice(run.idle), model)
            answers.append(run.next())
            break_off(f"{number} {len(answers)}")
        model = run.fold(model, answers, FoldRule(1.0, scale=0.5))
        break_off(f"{number} folded")
        run.evaluate(model)
    return model
"""


@pytest.mark.parametrize("large", [[], [LARGE]], ids=["in records", "in files"])
@pytest.mark.parametrize("place", ["1 1", "1 folded", "2 2", "3 1"])
def test_a_run_that_is_broken_off_goes_on_to_the_same_bits_and_times(flows, place, large):
    how = [VIRTUAL, "clients.count=5", "rounds=3", *large]
    whole = flows.finish(FLOW, *how)
    resumed = flows.resume(flows.broken(FLOW, *how, place=place), FLOW, *how)
    assert results(resumed) == results(whole)
    assert timeline(resumed) == timeline(whole)


def test_small_answers_lie_in_their_records_and_large_ones_in_files(flows):
    text = "run.start('site-1', model)\nanswer = run.next()\nsee(waiting())\n"
    text += "model = run.fold(model, [answer])"
    for large, files in (([], []), ([LARGE], ["effect-0001/site-1.safetensors"])):
        run = flows.finish(text, QUIET, "rounds=1", "clients.parallel=1", *large)
        assert flows.seen() == [repr(files)]
        [answer] = [result(each)["train"] for each in records(run) if each.name == "next"]
        [update] = answer["updates"].values()
        assert ("body" in update, "digest" in update) == (not large, bool(large))


def test_small_trainings_wait_together_until_a_worker_is_free(jobs):
    script = plain(first="flare.work(int(site[5:]))")
    kind = "workflow={type=fedbuff, args{buffer_size=20, concurrency=40}}"
    how = [VIRTUAL, PROCESSES, QUIET, kind, "clients.count=60", "clients.parallel=2", "rounds=4"]
    run = jobs.run(script, *how).finished()
    at_work = list[set[str]]()
    for event in Journal(run.directory.events):
        if isinstance(event, RoundStarted):
            at_work = [*filter(None, at_work), set(event.sites)]
            assert len(at_work) <= 2
        elif isinstance(event, SiteUpdate):
            for sites in at_work:
                sites.discard(event.site)


def test_who_comes_too_late_has_no_part_in_the_round_and_keeps_its_old_state(jobs):
    how = [VIRTUAL, "clients.count=4", "rounds=2", *OVER[1:], "clients.per_round=2"]
    run = jobs.run(noisy(), *how).finished()
    trained = [result(record) for record in records(run) if record.name == "train"]
    assert [len(each["sites"]) for each in trained] == [2, 2]
    for each in trained:
        [late] = each["late"]
        assert each["failures"] == {
            late: "the round went on without it (stragglers.policy = over_selection)"
        }
        assert late not in each.get("states", {})
        assert each["times"][late] >= each["ended"] - each.get("began", 0)
    assert not run.summary.benched


PARTS = """
time = flare.deadline()
examples = min(time.examples, 100.0 * index)
meta["num_examples"] = examples
open(flare.system_info()["site_dir"] + "/deadline", "w").write(f"{time.seconds} {time.examples}")
"""


def test_sites_that_know_the_deadline_answer_with_a_part_of_the_work(jobs):
    script = adding({(f"site-{n}", 1): PARTS for n in (1, 2, 3)})
    how = ["clients.count=3", "rounds=1", "stragglers={policy=deadline, deadline=150 ms}"]
    run = jobs.run(script, VIRTUAL, *how).finished()
    assert not run.summary.failures
    assert timeline(run)[0][3] == {"site-1": 100 * MS, "site-2": 150 * MS, "site-3": 150 * MS}
    assert (run.directory.site("site-3") / "deadline").read_text() == "0.15 150.0"
    # On the wall, a site knows the seconds alone.
    wall = jobs.run(script, *how, "stragglers.deadline=30 s", PROCESSES).finished()
    assert (wall.directory.site("site-3") / "deadline").read_text() == "30.0 inf"


def test_declared_work_stands_in_the_place_of_examples(jobs):
    script = adding({("site-1", 1): "flare.work(50)", ("site-2", 1): "flare.work(0.5)"})
    run = jobs.run(script, VIRTUAL, "clients.count=3", "rounds=1").finished()
    assert timeline(run)[0][3] == {"site-1": 50 * MS, "site-2": MS, "site-3": 3 * MS}


def test_code_that_has_to_declare_its_work_and_does_not_has_failed(jobs):
    script = adding({("site-1", 1): "flare.work(50)"})
    run = jobs.run(script, VIRTUAL, "time.work=declared", "clients.count=2", "rounds=1")
    assert "site-2: its code has not called flare.work(units)" in run.summary.error


def test_a_private_round_that_ends_early_has_the_noise_of_those_who_came(jobs):
    private = "privacy={type=central, noise_multiplier=0.25, sampling=without_replacement}"
    how = [VIRTUAL, *OVER, private, "clients.count=5", "rounds=2"]
    run = jobs.run(noisy(), *how).finished()
    other = jobs.run(noisy(), *how, PROCESSES, "clients.parallel=2").finished()
    assert results(run) == results(other)
    assert run.summary.privacy.epsilon > 0


def test_a_private_round_that_nobody_was_drawn_for_takes_no_time(jobs):
    how = [VIRTUAL, "privacy={type=central, noise_multiplier=0.25}", "clients.per_round=1"]
    run = jobs.run(noisy(), *how, "clients.count=8", "rounds=5", "seed=0").finished()
    first, *_, last = timeline(run)
    assert (first[0] > 1, first[1]) == (True, 0)  # the first round's effect has trained nobody
    assert run.summary.simulated_seconds == last[2] / 1e9


@pytest.mark.parametrize(
    ("deed", "sentence"),
    [
        ("flare.work(float('nan'))", "work() was given nan"),
        ("flare.work(-1)", "work() was given -1"),
        ("flare.work(1)\nflare.work(1)", "work() was called twice in a task"),
    ],
)
def test_work_that_is_none_is_refused(jobs, deed, sentence):
    run = jobs.run(adding({("site-1", 1): deed}), VIRTUAL, "rounds=1")
    assert run.summary.status == "failed"
    assert sentence in run.summary.error


def test_measured_work_is_journaled_and_a_resumed_run_keeps_to_it(flows):
    how = [VIRTUAL, "time.work=measured", "clients.count=3", "rounds=2"]
    broken = flows.broken(FLOW, *how, place="2 1")
    before = timeline(broken)
    resumed = flows.resume(broken, FLOW, *how)
    assert timeline(resumed)[: len(before)] == before
    times = [end for row in timeline(resumed) for end in row[3].values()]
    assert all(0 < end < 60_000 * MS for end in times)


@pytest.mark.parametrize(
    "kind",
    ["swarm", "scaffold", "cyclic, args{order=random}", "diloco", "fedper, args{personal=[b]}"],
)
def test_other_workflows_know_the_clock_too(jobs, kind):
    how = [VIRTUAL, f"workflow={{type={kind}}}", "clients.count=4", "rounds=2"]
    run = jobs.run(adding({}), *how).finished()
    wall = jobs.run(adding({}), *how[1:]).finished()
    assert results(run) == results(wall)
    each_round = sum(range(1, 5)) if kind.startswith("cyclic") else 4
    assert Fraction(run.summary.simulated_seconds).limit_denominator(10**6) == Fraction(
        2 * each_round, 1000
    )


@pytest.mark.parametrize("engine", [[], [PROCESSES, "clients.parallel=2"]])
def test_a_policy_goes_for_swarm_whose_updates_then_pass_by_the_server(jobs, engine):
    how = [VIRTUAL, *OVER, "workflow.type=swarm", "clients.count=4", "rounds=2"]
    run = jobs.run(adding({}), *how, *engine).finished()
    plain = jobs.run(adding({}), *how[:3], "clients.count=4", "rounds=2", *engine).finished()
    assert run.summary.model.digest == plain.summary.model.digest


def test_on_the_wall_the_first_answers_count_and_the_rest_is_not_waited_for(jobs):
    waits = "import threading\nif site == 'site-3': threading.Event().wait(600)"
    how = ["clients.count=3", "clients.per_round=2", PROCESSES, "rounds=1"]
    run = jobs.run(noisy(waits), *how, OVER[1]).finished()
    [failure] = run.summary.failures
    assert failure.site == "site-3"
    assert failure.reason.endswith("(stragglers.policy = over_selection)")
    assert run.summary.wall_seconds < 500


def test_the_journal_has_no_times_on_the_wall(jobs):
    run = jobs.run(noisy(), "rounds=1").finished()
    assert timeline(run) == []
    assert all(isinstance(each, EffectDone) for each in records(run))
    assert "simulated_seconds" not in run.directory.summary.read_text()
