"""``run.start`` and ``run.next``: trainings of single sites, whose answers come one by one."""

import pytest
import torch
from flows import numbered, records, result, shape
from safetensors.torch import load_file
from training_scripts import LARGE, QUIET, adding, noisy, of_kind, results

from flstream.errors import ResumeRefusedError
from flstream.server import updates
from flstream.telemetry.events import Evaluated, ProcessReady, SiteSuspended

PROCESSES = "engine.type=local"
ALL = """
if {is_started}:
    for site in run.sites:
        run.start(site, model, meta={{"lr": 0.5}})
        see(run.idle, run.in_flight)
    updates = sorted((run.next() for _ in run.sites), key=lambda each: each.site)
else:
    updates = run.train(model, run.sites, meta={{"lr": 0.5}})
model = run.fold(model, updates)
see(run.idle, run.in_flight)
run.evaluate(model)
"""


@pytest.mark.parametrize("workers", [[], [PROCESSES, "clients.parallel=1"], [PROCESSES]])
def test_a_round_of_answers_that_are_put_in_order_has_the_bits_of_one_training(flows, workers):
    how = ["clients.count=4", "rounds=2", *workers]
    together = flows.finish(ALL.format(is_started=False), *how)
    flows.seen()
    one_by_one = flows.finish(ALL.format(is_started=True), *how)
    assert results(one_by_one) == results(together)
    flows_seen = flows.seen()
    assert flows_seen[:5] == [
        "['site-4', 'site-2', 'site-3'], ['site-1']",  # the last takes the place of the first
        "['site-4', 'site-3'], ['site-1', 'site-2']",
        "['site-4'], ['site-1', 'site-2', 'site-3']",
        "[], ['site-1', 'site-2', 'site-3', 'site-4']",
        flows_seen[4],  # in the order of answers
    ]
    of_a_round = [*["start"] * 4, *["next"] * 4, "fold", "evaluate"]
    assert shape(records(one_by_one)) == numbered(*of_a_round, *of_a_round)


OWN_BASES = """
def answer_of(run, model, site):
    run.start(site, model)
    return run.next()


def flow(run):
    first = run.initial_model()
    for number in run.rounds():
        of_first = answer_of(run, first, "site-1")
        second = run.fold(first, [of_first])
        again, other = answer_of(run, second, "site-1"), answer_of(run, first, "site-2")
        see(other.base is first, other.ok, other.failure)
        three = [again, other, of_first]
        rule = FoldRule([1.0, 0.5, 4.0], scale=0.25, base="own")
        return run.fold(second, three, rule)
"""


def test_each_update_is_compared_with_its_own_base_also_two_of_one_site(flows):
    run = flows.finish(OWN_BASES, QUIET, "rounds=1", script=adding({}))
    assert flows.seen() == ["True, True, ''"]
    first, second, last = (
        run.directory.checkpoints / f"round-{name}.safetensors"
        for name in ("0000", "0001.step-00", "0001")
    )
    first, second, last = map(load_file, (first, second, last))
    # Site i adds i to each number, so the differences are 1, 2 and 1.
    assert torch.equal(second["b"], first["b"] + 1)
    torch.testing.assert_close(last["b"], second["b"] + 0.25 * (1.0 * 1 + 0.5 * 2 + 4.0 * 1))
    [_, fold] = [each for each in records(run) if each.name == "fold"]
    assert result(fold)["weights"] == {"site-1": 2.0, "site-2": 2.0}
    assert not of_kind(run, Evaluated)  # no metrics of three models are the score of one


LEFT = """
run.start("site-1", model)
first = run.next()
run.start("site-2", model)
model = run.fold(model, [first])
run.evaluate(model)
"""


@pytest.mark.parametrize("engine", [[], [PROCESSES]])
def test_a_training_in_flight_when_the_workflow_returns_is_cancelled(flows, engine):
    run = flows.finish(LEFT, "rounds=1", *engine)
    assert shape(records(run)) == numbered("start", "next", "start", "fold", "evaluate")
    assert not (run.directory.path / "updates").exists()
    assert run.summary.failures == []


def test_a_later_workflow_trains_the_sites_of_which_one_was_cancelled(flows):
    stages = 'workflow=[{type="flow.py:flow"}, {type=fedavg}]'
    flows.write(LEFT)
    run = flows.jobs.run(noisy(), stages, "rounds=1", "clients.parallel=1").finished()
    assert [each["round"] for each in run.summary.metrics] == [1, 2]
    assert [each.name for each in records(run)][-2:] == ["fold", "evaluate"]


MORE = """
for site in run.idle:
    run.start(site, model)
answer = run.next()
while answer.site != "site-1":
    answer = run.next()
model = run.fold(model, [answer])
see(number)
"""


def test_more_rounds_give_what_was_in_flight_again(flows):
    waits = noisy('site == "site-2" and threading.Event().wait()')
    run = flows.finish(MORE, QUIET, "rounds=1", PROCESSES, script=waits)
    assert shape(records(run)) == numbered("start", "start", "next", "fold")
    again = flows.resume(run, MORE, QUIET, "rounds=2", PROCESSES, script=waits)
    names = [record.name for record in records(again)]
    assert names[:5] == ["start", "start", "next", "fold", "start"]
    assert [each.request for each in records(again) if each.name == "start"][:3] == [
        "start(model 0, site-1)",
        "start(model 0, site-2)",
        "start(model 1, site-1)",
    ]


def test_a_site_has_the_time_of_its_start_and_the_run_that_of_its_waits(flows):
    text = """
    run.start("site-1", model, timeout=0.3)
    see(run.next().failure)
    run.limit_waiting(progress=0.3)
    run.start("site-2", model)
    run.next()
    """
    script = noisy("threading.Event().wait(5)")
    error = flows.fail(text, QUIET, PROCESSES, script=script)
    [seen] = flows.seen()
    assert "it did not answer its train task in the time it was given" in seen
    assert error.startswith("nothing came of the train task of round 1 for 0.3 s")


def test_once_a_run_has_failed_its_workers_are_given_nothing_more(flows):
    text = """
    run.limit_waiting(progress=0.3)
    model = run.fold(model, run.train(model, run.sites))
    """
    script = noisy("threading.Event().wait(3)")
    many = ["clients.count=8", "clients.parallel=2", LARGE]
    run = flows.run(text, QUIET, *many, PROCESSES, script=script)
    assert run.summary.error.startswith("nothing came of the train task of round 1 for 0.3 s")
    assert len({event.pid for event in of_kind(run, ProcessReady)}) == 3  # with the server's


def test_sites_that_take_turns_are_not_silent_while_each_has_its_own(flows):
    text = """
    run.limit_waiting(progress=1.0)
    model = run.fold(model, run.train(model, run.sites))
    """
    script = noisy("threading.Event().wait(0.4)")
    few = ["clients.count=6", "clients.parallel=1", "rounds=1"]
    run = flows.finish(text, QUIET, *few, PROCESSES, script=script)
    assert not run.summary.failures


WAITS = """
for site in run.idle:
    run.start(site, model)
answers = sorted((run.next() for _ in run.in_flight), key=lambda each: each.site)
break_off("waiting")
model = run.fold(model, answers)
"""


def lose(run, effect):
    """Truncate the update of an effect's training, as a power cut may."""
    [path] = run.directory.updates(effect).glob("*.safetensors")
    path.write_bytes(path.read_bytes()[:-1])
    return path


def test_an_answer_that_a_power_cut_took_is_done_again_with_those_after_it(flows):
    how = [QUIET, LARGE, "rounds=1", "clients.count=3", "clients.parallel=1"]
    expected = flows.finish(WAITS, *how)
    run = flows.broken(WAITS, *how, place="waiting")
    [second] = [each for each in records(run) if each.effect == 5]
    path = lose(run, result(second)["start"])
    again = flows.resume(run, WAITS, *how)
    [warning] = [each for each in again.summary.warnings if str(path) in each]
    assert warning.startswith("effect 5 and what followed is done again: ")
    assert shape(records(again)) == numbered(*["start"] * 3, *["next"] * 3, "fold")
    assert again.summary.model.digest == expected.summary.model.digest


@pytest.mark.parametrize(
    ("use", "due"),
    [
        # The first answer is part of the model whose record comes next.
        ("following = run.fold(model, answers[:1])\nmodel = run.fold(model, answers[1:])", [1, 2]),
        ("model = run.fold(model, answers)", []),
        ("model = run.adopt(answers[:1])", [0, 1, 2]),
        # What is dropped has a record, too.
        ("answers.clear()\nrun.write_json('out/x.json', 1)", [0, 1, 2]),
    ],
)
def test_what_waits_is_durable_before_an_effect_that_is_synced(flows, monkeypatch, use, due):
    synced = []

    def sync(path, real=updates.sync_file):
        synced.append(path.parent.name)
        real(path)

    monkeypatch.setattr(updates, "sync_file", sync)
    text = f"""
for site in run.sites:
    run.start(site, model)
answers = [run.next() for _ in run.sites]
{use}
"""
    run = flows.finish(text, QUIET, LARGE, "rounds=1", "clients.count=3", "clients.parallel=1")
    starts = [result(each)["start"] for each in records(run) if each.name == "next"]
    assert sorted(synced) == sorted(f"effect-{starts[place]:04d}" for place in due)


def test_sites_begin_once_they_are_started_and_a_cancelled_one_leaves_no_state(flows):
    text = """
    import threading

    run.start("site-1", model)
    run.start("site-2", model)
    mark = run_folder() / "sites" / "site-2" / "wrote"
    for _ in range(3000):
        if mark.exists():
            break
        threading.Event().wait(0.01)
    see(mark.exists(), run.in_flight)
    model = run.fold(model, [run.next()])
    """
    # One of them has written to its state, and never answers.
    body = """
    if site == "site-2":
        (flare.get_state_dir() / "large").write_bytes(bytes(1 << 20))
        open(folder + "/wrote", "w").close()
        threading.Event().wait()
    """
    run = flows.finish(text, QUIET, "rounds=1", PROCESSES, script=noisy(body))
    assert flows.seen() == ["True, ['site-1', 'site-2']"]
    left = run.directory.site("site-2") / "state"
    assert not left.exists() or list(left.iterdir()) == []


def test_an_answer_says_why_its_site_failed_and_one_that_fails_too_often_is_not_idle(flows):
    text = """
    for site in run.idle:
        run.start(site, model)
    answers = sorted((run.next() for _ in run.in_flight), key=lambda each: each.site)
    see([each.site for each in answers if each.ok], *(each.failure for each in answers))
    sound = [each for each in answers if each.ok]
    rule = FoldRule([1.0] * len(sound), scale=1 / len(sound), base="own")
    model = run.fold(model, sound, rule)
    """
    deeds = {("site-2", 1): "raise KeyError('k')", ("site-2", 2): "params['w'][3] = float('inf')"}
    how = [QUIET, "rounds=3", "clients.count=3", "clients.suspend_after=2"]
    run = flows.finish(text, *how, script=adding(deeds))
    seen = flows.seen()
    assert all(line.startswith("['site-1', 'site-3'], ''") for line in seen)
    for line, words in zip(seen, ("KeyError: 'k'", "not finite: tensor 'w'", "''"), strict=True):
        assert words in line
    assert [event.round for event in of_kind(run, SiteSuspended)] == [2]
    first, last = (load_file(run.directory.checkpoint(number)) for number in (0, 3))
    # Site i adds i to each number: each round the mean of 1 and 3.
    torch.testing.assert_close(last["b"], first["b"] + 3 * 2)
    assert not (run.directory.path / "updates").exists()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "asked = run.train(model, ['site-1'])\nrun.start('site-1', model)\n"
            "run.fold(model, asked)",
            "run.train() was given site-1, whose training is in flight",
        ),
        (
            "run.start('site-2', model)\n"
            "run.fold(model, run.train(model, ['site-1']), at=['site-1'])",
            "run.fold() was given at, and the training of site-2 is in flight",
        ),
    ],
)
def test_a_site_has_one_task_and_nobody_folds_at_a_site_meanwhile(flows, text, sentence):
    assert sentence in flows.fail(text, QUIET, "rounds=1")


CARRIES = """
def flow(run):
    model, prev, early = run.initial_model(), [], {}
    busy = []
    for number in run.rounds():
        for site in run.sites:
            if site not in busy:
                run.start(site, model)
                busy.append(site)
        taken = []
        for _ in range(2):  # the oldest; one of three is always in flight
            while busy[0] not in early:
                answer = run.next()
                early[answer.site] = answer
            taken.append(early.pop(busy.pop(0)))
        if prev:
            rule = FoldRule(1.0, normalise=True, base="own")
            model = run.fold(model, prev, rule)
        model = run.fold(model, taken[:1], FoldRule(base="own", normalise=True))
        prev = taken[1:]
    return model
"""


@pytest.mark.parametrize("keep", ["all", "2"])
def test_what_waits_at_the_end_of_a_round_is_there_to_go_back_and_to_go_on(flows, keep):
    how = [QUIET, "clients.count=3", f"checkpoints.keep={keep}"]
    whole = flows.finish(CARRIES, *how, "rounds=7").summary.model.digest
    run = flows.finish(CARRIES, *how, "rounds=5")
    kind = flows.write(CARRIES)
    back = flows.jobs.go_on(run, noisy(), kind, *how, "rounds=5", from_round=4)
    assert back.summary.model.digest == run.summary.model.digest
    assert flows.resume(back, CARRIES, *how, "rounds=7").summary.model.digest == whole


def test_a_model_that_a_site_was_training_is_checked_before_the_run_goes_back(flows):
    how = [QUIET, "clients.count=3", "rounds=4"]
    run = flows.finish(CARRIES, *how)
    # At the end of round 3, a site was training what round 2 had ended with.
    path = run.directory.checkpoint(2)
    sound, before = path.read_bytes(), run.directory.events.read_bytes()
    path.write_bytes(sound[:-1])
    with pytest.raises(
        ResumeRefusedError, match=r"that sites were training.*round-0002.*round 1 is"
    ):
        flows.jobs.go_on(run, noisy(), flows.write(CARRIES), *how, from_round=3)
    assert run.directory.events.read_bytes() == before


ONE_BY_ONE = """
import os


def flow(run):
    model, draw = run.initial_model(), run.random("sites")
    for number in run.rounds():
        while run.idle:
            run.start(draw.choice(run.idle), model)
        model = run.fold(model, [run.next()], FoldRule(0.5, base="own"))
        see(len(os.listdir("/proc/self/fd")))
    return model
"""


def test_files_of_models_that_nobody_trains_any_more_are_closed_though_all_are_kept(flows):
    flows.finish(ONE_BY_ONE, QUIET, "clients.count=3", "rounds=40", "checkpoints.keep=all")
    counts = [int(line) for line in flows.seen()]
    assert len(counts) == 40
    assert max(counts[20:]) - min(counts[5:20]) < 10
