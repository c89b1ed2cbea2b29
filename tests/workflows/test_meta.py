"""Values that travel beside the tensors, from a workflow to its sites and back."""

from flows import records, shape
from training_scripts import QUIET, plain

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
