"""A sum in a file: the bits of one walk, whatever was added when."""

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from folding import fold_into, shifted, update
from hypothesis import given, settings
from hypothesis import strategies as st
from support import FOLDED, cuts, every_kind

from flstream.aggregation.partial_sum import PartialSum
from flstream.aggregation.rules import AggregationRule
from flstream.errors import AggregationError
from flstream.model.memory import MemoryBody

NAMES = sorted(every_kind(FOLDED))


def quiet(_):
    pass


def sums(folder, base, rule=None):
    return PartialSum(folder / "sum.safetensors", MemoryBody.of(base), rule or AggregationRule())


def finished(partial_sum, base, rule=None, step=1 << 20):
    return fold_into(base, [], rule, step, earlier=partial_sum)[1]


@given(
    data=st.data(),
    groups=st.lists(st.integers(1, 3), min_size=1, max_size=4),
    steps=st.lists(cuts(1400), min_size=6, max_size=6),
    clip_norm=st.sampled_from([None, 5.0]),
    exclude=st.sampled_from([[], ["F32", "I64"]]),
)
@settings(max_examples=10, deadline=None)
def test_a_sum_in_several_steps_has_the_bits_of_one_walk(data, groups, steps, clip_norm, exclude):
    base, rule = every_kind(FOLDED), AggregationRule(clip_norm=clip_norm, exclude=exclude)
    updates = []
    for place in range(sum(groups)):
        names = data.draw(st.sampled_from([NAMES, NAMES[::2], NAMES[5:20]]))
        state = {name: shifted(base, place)[name] for name in names}
        kind = data.draw(st.sampled_from(["FULL", "DIFF"]))
        weight = data.draw(st.floats(1e-3, 1e3))
        updates.append(update(f"site-{place}", state, weight, kind, partial=True))
    due = fold_into(base, updates, rule)[1]
    with TemporaryDirectory() as folder:
        left, partial_sum = list(updates), sums(Path(folder), base, rule)
        for size, step in zip(groups, steps, strict=False):
            now, left = left[:size], left[size:]
            partial_sum.add(now, step, quiet)
        assert partial_sum.sites == [each.site for each in updates]
        assert finished(partial_sum, base, rule, steps[-1]) == due
        assert os.listdir(folder) == ["sum.safetensors"]


def test_an_addition_that_fails_leaves_the_sums_before(tmp_path):
    base = {"w": torch.zeros(4096)}
    updates = [update(f"site-{i}", {"w": torch.full((4096,), 0.1 + i)}, 1.0 + i) for i in range(3)]
    partial_sum = sums(tmp_path, base)
    partial_sum.add(updates[:1], 4096, quiet)

    def on_range(done):
        if done > 8192:
            raise AggregationError("stopped")

    with pytest.raises(AggregationError, match="stopped"):
        partial_sum.add(updates[1:], 4096, on_range)
    assert partial_sum.sites == ["site-0"]
    assert [path.name for path in tmp_path.iterdir()] == ["sum.safetensors"]
    partial_sum.add(updates[1:], 4096, quiet)
    assert finished(partial_sum, base) == fold_into(base, updates)[1]


def test_what_does_not_belong_into_a_sum_is_refused(tmp_path):
    base = {"w": torch.zeros(4, dtype=torch.float64), "v": torch.zeros(4)}
    partial_sum = sums(tmp_path, base)
    with pytest.raises(AggregationError, match="no update was added"):
        finished(partial_sum, base)
    large = {**base, "w": torch.full((4,), 1e308, dtype=torch.float64)}
    partial_sum.add([update("site-1", large)], 16, quiet)
    with pytest.raises(ValueError, match="site-1 is in the partial sum already"):
        partial_sum.add([update("site-1", base)], 16, quiet)
    with pytest.raises(AggregationError, match=r"tensor 'w' at \[0\] has a sum that is not finite"):
        partial_sum.add([update("site-2", large)], 16, quiet)
    with pytest.raises(ValueError, match="median needs all updates at once"):
        sums(tmp_path, base, AggregationRule(method="median"))
