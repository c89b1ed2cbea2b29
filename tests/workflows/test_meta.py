"""Values that travel beside the tensors, from a workflow to its sites and back."""

from flows import records, shape
from training_scripts import QUIET, adding, plain

# Sends back what it was sent, with its name.
ECHO = plain("""
    sent = {key: value for key, value in model.meta.items() if key != "task"}
    meta = {"echo": sent, "from": site, "num_examples": int(site[-1]), "round": (1, 2.5)}
    optimizer = None if model.optimizer_params is None else {**model.optimizer_params, "by": site}
    """, sends="params=params, meta=meta, optimizer_params=optimizer")  # fmt: skip
FLOW = """
def flow(run):
    model, step = run.initial_model(), 0
    for number in run.rounds():
        updates = run.train(
            model,
            run.sites,
            meta={"step": step, "control": [1.5, None, ("a", b"b")], "nan": float("nan")},
            optimizer_params={"lr": 0.1 / number},
        )
        for each in updates:
            see(each.site, each.weight, each.meta, each.optimizer_params)
        step = sum(each.meta["echo"]["step"] + 1 for each in updates)
        plain = run.train(model, ["site-2"])
        see([(each.meta["echo"], each.optimizer_params) for each in plain])
        for value in (1, 2, 1):
            len(run.train(model, ["site-1"], meta={"value": value}))
        len(run.train(model, ["site-1"], optimizer_params={"value": 1}))
        model = run.fold(model, updates)
        break_off(f"{number}")
    return model
"""


def test_values_reach_the_other_side_both_ways_and_are_the_same_on_replay(flows):
    shared = [QUIET, "clients.parallel=1"]
    run = flows.broken(FLOW, *shared, place="1", script=ECHO)
    live = flows.seen()
    sent = "'step': 0, 'control': [1.5, None, ('a', b'b')], 'nan': nan, 'site_name': 'site-1'"
    assert live[0] == (
        f"'site-1', 1.0, {{'echo': {{{sent}}}, 'from': 'site-1', 'num_examples': 1, "
        "'round': (1, 2.5)}, {'lr': 0.1, 'by': 'site-1'}"
    )
    assert live[2] == "[({'site_name': 'site-2'}, None)]"
    flows.resume(run, FLOW, *shared, script=ECHO)
    replayed = flows.seen()
    assert replayed[:3] == live
    # What the workflow makes of one round's values is what it sends in the next.
    assert "'step': 2," in replayed[3]
    assert "{'lr': 0.05, 'by': 'site-1'}" in replayed[3]
    # What is sent is part of what was asked.
    assert shape(records(run)[2:6]) == [f"{number} train" for number in (3, 4, 5, 6)]
    digests = [record.arguments for record in records(run)[2:6]]
    assert digests[0] == digests[2]
    assert len(set(digests)) == 3


def test_a_learner_has_them_too(flows):
    script = """
    import flstream.client as flare

    class Sites(flare.Learner):
        def train(self, model):
            meta = {"echo": model.meta["value"], "num_examples": 2}
            optimizer = {"twice": 2 * model.optimizer_params["value"]}
            return flare.FLModel(params=model.params, meta=meta, optimizer_params=optimizer)
    """
    text = """
    def flow(run):
        model = run.initial_model()
        for number in run.rounds():
            values = {"value": number + 0.5}
            updates = run.train(model, run.sites, meta=values, optimizer_params=values)
            see([(each.meta["echo"], each.optimizer_params) for each in updates])
            model = run.fold(model, updates)
        return model
    """
    learner = ["train.script=null", "train.learner=client:Sites", QUIET, "rounds=1"]
    flows.finish(text, *learner, "clients.parallel=1", script=script)
    assert flows.seen() == ["[(1.5, {'twice': 3.0}), (1.5, {'twice': 3.0})]"]


REFUSED = {
    "meta={'a': {'b': [0, torch.ones(2)]}}": '["meta"]["a"]["b"][1] is a tensor',
    "optimizer_params={'s': {0: {'avg': torch.ones(2)}}}": (
        '["optimizer_params"]["s"][0]["avg"] is a tensor'
    ),
    "meta={'f': object()}": "meta cannot be sent",
    "meta={'large': bytes(2 << 20)}": "and 1048576 is most; send less, or put it into params",
}


def test_what_cannot_be_sent_is_refused_with_its_path_where_it_is_sent(jobs):
    deeds = {
        (f"site-{number}", 1): f"flare.send(flare.FLModel(params=params, {values}))"
        for number, values in enumerate(REFUSED, 2)
    }
    how = [f"clients.count={len(REFUSED) + 1}", "clients.min_updates=1", "rounds=1", QUIET]
    failures = jobs.run(adding(deeds), *how).summary.failures
    reasons = {failure.site: failure.reason for failure in failures}
    for (site, _), sentence in zip(deeds, REFUSED.values(), strict=True):
        assert sentence in reasons[site]
