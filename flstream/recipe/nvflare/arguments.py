"""What becomes of settings that need a rule of their own."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from flstream.recipe.nvflare.draft import Argument, ConfiguredClass, JobDraft, KeyMetric
from flstream.recipe.nvflare.notes import Note
from flstream.recipe.nvflare.rules import ONE_OF_EACH, Rule, lost, to, unneeded
from flstream.recipe.nvflare_names import fedavgm_keys

# Of NVFlare's controllers, and of its model selector.
_DEFAULT_ROUNDS = 5
_DEFAULT_METRIC = "val_accuracy"
_AN_HOUR = "no limit, while clients.round_timeout is an hour unless it is set"
_ALL_ANSWER = "all sites of a round have to answer, unless clients.min_updates is set"


def order(draft: JobDraft, argument: Argument) -> Note:
    """Convert the order of a cyclic workflow."""
    value = argument.value
    draft.stages[-1].args["order"] = value.lower() if isinstance(value, str) else value
    return argument.becomes("workflow.args.order")


def site_list(name: str, why: str, words: Collection[str] = ()) -> Rule:
    """Return the rule of a setting that lists sites, and is an argument of the workflow.

    Args:
        name: Name of the workflow's argument.
        why: Why an empty list needs nothing.
        words: Words that stand for an empty list.
    """

    def rule(draft: JobDraft, argument: Argument) -> Note:
        value, key = argument.value, f"workflow.args.{name}"
        if not value or (isinstance(value, str) and value in words):
            return argument.not_needed(why)
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            return argument.lost(f"{key} is a list of sites")
        draft.stages[-1].args[name] = [draft.site(each) for each in value]
        return argument.becomes(key)

    return rule


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def min_clients(draft: JobDraft, argument: Argument) -> Note:
    """Convert the number of sites that have to answer."""
    value = argument.value
    if not _whole(value) or draft.count is None:
        return argument.lost("clients.min_updates must be a whole number of at least 1")
    if value == draft.count:
        return _every_site(draft, argument)
    if value > draft.count:
        return argument.lost(f"the job has {draft.count} sites")
    return to("clients.min_updates")(draft, argument)


def num_clients(draft: JobDraft, argument: Argument) -> Note:
    """Convert the number of sites that a round samples."""
    value = argument.value
    if not _whole(value) or draft.count is None:
        return argument.lost("clients.per_round must be a whole number of at least 1")
    if draft.sampled not in (None, value):
        return argument.lost(f"clients.per_round is for all workflows, and {draft.sampled} already")
    draft.sampled = value
    if value < draft.count:
        return to("clients.per_round")(draft, argument)
    return _every_site(draft, argument)


def _every_site(draft: JobDraft, argument: Argument) -> Note:
    if draft.site_names is None:
        return argument.becomes("clients.count")
    return argument.not_needed("a round asks all sites unless clients.per_round is set")


def wait_after_min(draft: JobDraft, argument: Argument) -> Note:
    """Convert how long the rest is waited for; comes after `min_clients`."""
    if argument.value in (0, None):
        if "clients.min_updates" not in draft.values:
            return argument.not_needed(_ALL_ANSWER)
        return argument.lost("the rest is waited for as long as a task may take")
    return to("clients.wait_after_min")(draft, argument)


def timeout(draft: JobDraft, argument: Argument) -> Note:
    """Convert how long a site may take for a task; 0 and null are no limit."""
    if argument.value in (0, None):
        return argument.lost(_AN_HOUR)
    return to("clients.round_timeout")(draft, argument)


def patience(draft: JobDraft, argument: Argument) -> Note:
    """Convert the number of rounds without a better model that ends the job."""
    note = to("patience")(draft, argument)
    if note.kind == "becomes" and not (argument.owner and argument.owner.args.get("stop_cond")):
        return argument.becomes("patience, which counts without a stop_cond, too")
    return note


def exclude(draft: JobDraft, argument: Argument) -> Note:
    """Convert a regular expression of tensors that keep their value."""
    if argument.value in (None, "", []):
        return argument.not_needed("nothing is excluded")
    key = "aggregation.exclude"
    if not isinstance(argument.value, str):
        return argument.lost(f"{key} is a list of regular expressions")
    return argument.becomes_unless(draft.add_patterns(key, [argument.value]), key)


def site_weights(draft: JobDraft, argument: Argument) -> Note:
    """Convert the factors of sites' weights."""
    if not argument.value:
        return argument.not_needed("all sites have the factor 1")
    if not isinstance(argument.value, dict):
        return argument.lost("aggregation.weights is a section")
    factors = {draft.site(name): factor for name, factor in argument.value.items()}
    key = "aggregation.weights"
    return argument.becomes_unless(draft.put(key, factors), key)


def key_metric(draft: JobDraft, argument: Argument) -> Note:
    """Convert a model selector's metric."""
    value, owner = argument.value, argument.owner
    if not isinstance(value, str) or not value.strip():
        return argument.lost("workflow.args.key_metric must be the name of a metric")
    metric = KeyMetric(value, bool(owner and owner.args.get("negate_key_metric")))
    if draft.metric not in (None, metric):
        return argument.lost(f"workflow.args.key_metric is {draft.metric[0]} already")
    draft.metric = metric
    return argument.becomes("workflow.args.key_metric")


def default_rounds(draft: JobDraft, owner: ConfiguredClass) -> Iterator[Note]:
    """Note on the number of rounds of a controller that says none."""
    if "num_rounds" not in owner.args and draft.put("rounds", _DEFAULT_ROUNDS) is None:
        word = f"rounds = {_DEFAULT_ROUNDS}, its default"
        yield owner.place.note("becomes", word, owner.named)


def default_metric(draft: JobDraft, owner: ConfiguredClass) -> Iterator[Note]:
    """Note on the metric of a model selector that names none."""
    if "key_metric" not in owner.args and draft.metric is None:
        draft.metric = KeyMetric(_DEFAULT_METRIC, bool(owner.args.get("negate_key_metric")))
        word = f"workflow.args.key_metric = {_DEFAULT_METRIC}, its default"
        yield owner.place.note("becomes", word, owner.named)


def negate(draft: JobDraft, argument: Argument) -> Note:
    """Convert whether the smallest value is the best."""
    if argument.value:
        return argument.becomes("workflow.args.key_metric_mode = min")
    return argument.not_needed("the largest value is the best, unless the metric is a loss")


def _server_optimizer(draft: JobDraft, argument: Argument) -> Note:
    """Convert torch's SGD on the server, which is what fedavgm computes."""
    keys = fedavgm_keys(argument.value)
    if isinstance(keys, str):
        return argument.lost(keys)
    for key, each in keys.items():
        if refused := draft.put(key, each):
            return argument.lost(refused)
    return argument.becomes(*keys)


SERVER_OPTIMIZER: Mapping[str, Rule] = {
    "optimizer_args": _server_optimizer,
    "lr_scheduler_args": lost("server_optimizer.args.learning_rate is one number"),
    "source_model": ONE_OF_EACH,
    "device": unneeded("the server computes on the CPU, range by range"),
}
"""Settings of an optimizer on the server."""
