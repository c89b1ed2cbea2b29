"""The journal's records of effects: what they hold, when they count, and what programs see."""

from flows import models, numbered, records, result, shape
from msgspec import structs
from training_scripts import adding, plain

from flstream.runs.results import TrainResult
from flstream.server import effects


def test_a_record_has_number_kind_digest_of_arguments_and_result(flows):
    text = """
    updates = run.train(model, run.sites)
    len(updates)
    model = run.fold(model, updates)
    run.evaluate(model)
    """
    found = records(flows.finish(text))
    assert shape(found) == numbered(*["train", "fold", "evaluate"] * 2)
    assert [each.round for each in found] == [1, 1, 1, 2, 2, 2]
    # What was asked of other models or rounds has other digests.
    assert len({each.arguments for each in found}) == 6
    train, fold, evaluate = map(result, found[:3])
    assert (train["sites"], train["weights"]) == (["site-1", "site-2"], [1.0, 2.0])
    assert fold["weights"] == {"site-1": 1.0, "site-2": 2.0}
    assert fold["updates"] == [[1, ["site-1", "site-2"]]]
    assert list(evaluate["metrics"]) == ["accuracy"]


# Values that JSON has no words for, or other words; a site sends back what it was sent.
VALUES = """{
    "nan": float("nan"), "inf": float("inf"), "less": -float("inf"), "zero": -0.0, "tiny": 5e-324,
    "third": 1 / 3, "tuple": (1, (2.0, "x")), "none": None, "raw": bytes([0, 255]),
    "large": 2**60, "nested": {"list": [1, [True]], "$float": "nan"}, "text": "\u00e9\\n",
}"""
METRICS = "{'loss': float('nan'), 'up': float('inf'), 'third': 1 / 3}"
ECHO = plain(
    f"""
    sent = {{key: value for key, value in model.meta.items() if key != "task"}}
    meta = {{"echo": sent, "num_examples": int(site[-1])}}
    optimizer = None if model.optimizer_params is None else model.optimizer_params | {{"by": site}}
    metrics = {METRICS}
    """,
    first=f"metrics = {METRICS} | {{'accuracy': 0.5}}",
    sends="params=params, meta=meta, metrics=metrics, optimizer_params=optimizer",
)


def test_values_travel_both_ways_and_are_the_same_live_and_on_replay(flows):
    text = f"""
    def flow(run):
        model, step = run.initial_model(), 0
        for number in run.rounds():
            values = {" ".join(VALUES.split())} | {{"step": step}}
            lr = {{"lr": (0.1, step)}}
            updates = run.train(model, run.sites, meta=values, optimizer_params=lr)
            for each in updates:
                see(each.site, each.weight, each.metrics, each.meta, each.optimizer_params)
                see(each.base, each.base is model, len(updates), updates.failures)
            step = sum(each.meta["echo"]["step"] + 1 for each in updates)
            for value in (1, 2, 1):
                len(run.train(model, ["site-1"], meta={{"value": value}}))
            model = run.fold(model, updates)
            see(model, run.evaluate(model), run.best, run.sites)
            break_off()
        return model
    """
    run = flows.broken(text, script=ECHO)
    live = flows.seen()
    # What is sent is part of what was asked.
    digests = [record.arguments for record in records(run)[1:4]]
    assert digests[0] == digests[2] != digests[1]
    flows.resume(run, text, script=ECHO)
    seen = flows.seen()
    assert seen[: len(live)] == live
    for line, step in ((seen[0], 0), (seen[5], 2)):
        assert "'nan': nan, 'inf': inf, 'less': -inf, 'zero': -0.0, 'tiny': 5e-324" in line
        assert "'tuple': (1, (2.0, 'x')), 'none': None, 'raw': b'\\x00\\xff'" in line
        assert f"'step': {step}, 'site_name': 'site-1'" in line
        assert line.endswith(f"{{'lr': (0.1, {step}), 'by': 'site-1'}}")
    assert "'loss': nan, 'up': inf" in live[0]
    assert "nan" in live[-1]


def test_a_program_sees_what_the_record_holds_and_no_more(flows, monkeypatch):
    def marked(data, kind, decode=effects.decode_record):
        value = decode(data, kind)
        if kind is TrainResult:
            return structs.replace(value, weights=[7.0 for _ in value.weights])
        return value

    text = """
    see([each.weight for each in run.train(model, run.sites)])
    """
    monkeypatch.setattr(effects, "decode_record", marked)
    flows.finish(text, "rounds=1")
    assert flows.seen() == ["[7.0, 7.0]"]


FAILS = adding({("site-2", 2): "raise KeyError('oops')"})


def test_an_effect_that_failed_cannot_be_caught_and_is_not_journaled(flows):
    text = """
    try:
        try:
            model = run.fold(model, run.train(model, run.sites))
        except Exception:
            see("caught")
    except:
        see("held up", number)
    see(number, run.evaluate(model))
    """
    run = flows.run(text, script=FAILS)
    assert run.summary.status == "failed"
    assert "KeyError: 'oops'" in run.summary.error
    assert "site-2" in run.summary.error
    assert shape(records(run)) == numbered("fold", "evaluate")
    # It passes by what catches all, and then fails the next effect.
    assert flows.seen() == ["1, {'accuracy': 1.0}", "'held up', 2"]
    assert models(run) == ["round-0000", "round-0001"]
    assert not run.directory.final_model.exists()
