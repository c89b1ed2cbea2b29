"""What becomes of single settings: a rule each, which converts one and returns the note on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from flstream.job.workflow_code import find_workflow
from flstream.recipe.nvflare.draft import Argument, ConfiguredClass, JobDraft, KeyMetric
from flstream.recipe.nvflare.notes import Note
from flstream.recipe.nvflare_names import fedavgm_keys

Rule = Callable[[JobDraft, Argument], Note]
"""Converts a setting, and returns the note on it."""

# Of NVFlare's model selector.
_DEFAULT_METRIC = "val_accuracy"
_AN_HOUR = "no limit, while clients.round_timeout is an hour unless it is set"
_ALL_ANSWER = "all sites of a round have to answer, unless clients.min_updates is set"


def to(key: str) -> Rule:
    """Return the rule of a setting that is a key of the job file, with the same values."""

    def rule(draft: JobDraft, argument: Argument) -> Note:
        if argument.value is None:
            return argument.not_needed("null is the default")
        refused = draft.put(key, argument.value)
        return argument.becomes(key) if refused is None else argument.lost(refused)

    return rule


def unneeded(why: str) -> Rule:
    """Return the rule of a setting that has nothing to do here."""
    return lambda draft, argument: argument.not_needed(why)


def lost(why: str) -> Rule:
    """Return the rule of a setting without a counterpart; null and false ask for nothing."""

    def rule(draft: JobDraft, argument: Argument) -> Note:
        if argument.value in (None, False) or argument.value == [] or argument.value == {}:
            return argument.not_needed("nothing is asked for")
        return argument.lost(why)

    return rule


def only(value: Any, why: str, otherwise: str = "") -> Rule:
    """Return the rule of a setting that is as it should be, or else has no counterpart.

    Args:
        value: The value that needs nothing.
        why: Why it needs nothing.
        otherwise: What to say of other values.
    """

    def rule(draft: JobDraft, argument: Argument) -> Note:
        if argument.value in (None, value):
            return argument.not_needed(why)
        return argument.lost(otherwise)

    return rule


def in_workflow(name: str = "") -> Rule:
    """Return the rule of a setting that is an argument of the workflow.

    Args:
        name: Name of the workflow's argument; empty where it is the same.
    """

    def rule(draft: JobDraft, argument: Argument) -> Note:
        stage = draft.stages[-1]
        own = name or argument.name
        if argument.value is None:
            return argument.not_needed("null is the default")
        if own not in find_workflow(stage.type).args.model_fields:
            return argument.lost(f"the workflow {stage.type} has no such argument")
        stage.args[own] = argument.value
        return argument.becomes(f"workflow.args.{own}")

    return rule


def order(draft: JobDraft, argument: Argument) -> Note:
    """Convert the order of a cyclic workflow."""
    value = argument.value
    draft.stages[-1].args["order"] = value.lower() if isinstance(value, str) else value
    return argument.becomes("workflow.args.order")


def aggregators(draft: JobDraft, argument: Argument) -> Note:
    """Convert the sites of which one folds in each round; none are all of them."""
    value = argument.value
    if value in (None, "", [], "@all", "@ALL"):
        return argument.not_needed("all sites may fold unless workflow.args.aggregators is set")
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        return argument.lost("workflow.args.aggregators is a list of sites")
    draft.stages[-1].args["aggregators"] = [draft.site(name) for name in value]
    return argument.becomes("workflow.args.aggregators")


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
    return _exclude(draft, argument, [argument.value])


def _exclude(draft: JobDraft, argument: Argument, patterns: list[Any]) -> Note:
    key = "aggregation.exclude"
    if not all(isinstance(each, str) for each in patterns):
        return argument.lost(f"{key} is a list of regular expressions")
    refused = draft.add_patterns(key, patterns)
    return argument.becomes(key) if refused is None else argument.lost(refused)


def site_weights(draft: JobDraft, argument: Argument) -> Note:
    """Convert the factors of sites' weights."""
    if not argument.value:
        return argument.not_needed("all sites have the factor 1")
    if not isinstance(argument.value, dict):
        return argument.lost("aggregation.weights is a section")
    factors = {draft.site(name): factor for name, factor in argument.value.items()}
    refused = draft.put("aggregation.weights", factors)
    return argument.becomes("aggregation.weights") if refused is None else argument.lost(refused)


def sites(draft: JobDraft, argument: Argument) -> Note:
    """Convert the sites that take part in a workflow."""
    value = argument.value
    if not value:
        return argument.not_needed("all sites take part")
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        return argument.lost("workflow.args.participating_sites is a list of sites")
    draft.stages[-1].args["participating_sites"] = [draft.site(name) for name in value]
    return argument.becomes("workflow.args.participating_sites")


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


def server_optimizer(draft: JobDraft, argument: Argument) -> Note:
    """Convert torch's SGD on the server, which is what fedavgm computes."""
    keys = fedavgm_keys(argument.value)
    if isinstance(keys, str):
        return argument.lost(keys)
    for key, each in keys.items():
        if refused := draft.put(key, each):
            return argument.lost(refused)
    return argument.becomes(*keys)
