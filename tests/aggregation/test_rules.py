"""Rules: which tensors are aggregated, and what the job file asks for."""

import pytest
import torch
from folding import fold, update
from support import assert_same_tensors

from flstream.aggregation.rules import AggregationRule, rule_for
from flstream.errors import UsageError
from flstream.job.sections import AggregationSection
from flstream.model.memory import MemoryBody

BASE = {name: torch.zeros(2) for name in ("head.weight", "head.bias", "body.weight", "body.bias")}
SENT = {name: torch.ones(2) for name in BASE}


def selected(**keys):
    return sorted(AggregationRule(**keys).selected(MemoryBody.of(BASE).layout))


def test_a_pattern_is_looked_for_anywhere_in_a_name():
    assert selected() == sorted(BASE)
    assert selected(include=["^head"]) == ["head.bias", "head.weight"]
    assert selected(exclude=["bias"]) == ["body.weight", "head.weight"]
    assert selected(include=["^head", "weight"], exclude=[r"^body\."]) == [
        "head.bias",
        "head.weight",
    ]


def test_what_is_left_out_keeps_its_old_value():
    found = fold(
        BASE, [update("site-1", SENT)], AggregationRule(include=["^head"], exclude=["bias$"])
    )
    due = {**BASE, "head.weight": SENT["head.weight"]}
    assert_same_tensors(found, due)


@pytest.mark.parametrize("key", ["include", "exclude"])
def test_a_pattern_that_is_found_nowhere_is_named(key):
    with pytest.raises(UsageError, match=f"aggregation.{key}: the pattern 'haed' is found in no"):
        selected(**{key: ["weight", "haed"]})


def test_a_tied_tensor_is_meant_by_any_of_its_names():
    shared = torch.zeros(2)
    layout = MemoryBody.of({"embed": shared, "head": shared, "x": torch.zeros(1)}).layout
    assert AggregationRule(include=["head"]).selected(layout) == {"embed"}
    assert AggregationRule(exclude=["head"]).selected(layout) == {"x"}


def test_the_job_file_says_which_rule():
    assert rule_for(AggregationSection()) == AggregationRule(include=[".*"], exclude=[])
    section = AggregationSection(
        method="trimmed_mean",
        trim=0.2,
        clip_norm=3.0,
        include=["a"],
        exclude=["b"],
        on_nonfinite="allow",
    )
    assert rule_for(section) == AggregationRule("trimmed_mean", 0.2, 3.0, ["a"], ["b"], "allow")
    robust = AggregationSection(method="multi_krum", byzantine=1, selected=2)
    assert rule_for(robust) == AggregationRule(
        "multi_krum", include=[".*"], exclude=[], byzantine=1, chosen=2
    )
    bounded = AggregationSection(method="norm_bounded_mean", clip_norm="median")
    assert rule_for(bounded) == rule_for(AggregationSection(clip_norm="median"))
