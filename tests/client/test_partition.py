"""Splits of a data set over sites: every example is at one site, and they are as their papers'."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flstream.client import partition
from flstream.errors import ClientError

LABELS = np.repeat(np.arange(10), 100)[np.random.default_rng(3).permutation(1000)]


def all_of(parts):
    return np.sort(np.concatenate(parts)).tolist()


SPLITS = {
    "iid": lambda seed: partition.iid(1000, 7, seed=seed),
    "dirichlet": lambda seed: partition.dirichlet(LABELS, 7, 0.3, seed=seed),
    "shards": lambda seed: partition.shards(LABELS, 7, 2, seed=seed),
    "by_label": lambda seed: partition.by_label(LABELS, 7, 3, seed=seed),
    "by_group": lambda seed: partition.by_group(LABELS, 7, seed=seed),
    "quantity": lambda seed: partition.quantity(1000, 7, 0.5, seed=seed),
}


@pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS)
def test_every_example_is_at_one_site_and_a_seed_gives_one_split(split):
    parts = split(1)
    assert len(parts) == 7
    assert all_of(parts) == list(range(1000))
    again, other = split(1), split(2)
    assert all(np.array_equal(*pair) for pair in zip(parts, again, strict=True))
    assert not all(np.array_equal(*pair) for pair in zip(parts, other, strict=True))
    assert {part.dtype for part in parts} == {np.dtype(np.int64)}


def test_a_small_alpha_gives_few_labels_a_site_and_a_large_one_all():
    few = partition.dirichlet(LABELS, 5, 0.01, seed=1)
    most = [np.bincount(LABELS[part], minlength=10).max() / len(part) for part in few]
    assert np.mean(most) > 0.3
    many = partition.dirichlet(LABELS, 5, 10_000, seed=1)
    for part in many:
        assert np.allclose(np.bincount(LABELS[part]) / len(part), 0.1, atol=0.02)


@pytest.mark.nightly
def test_a_dirichlet_split_is_drawn_again_until_each_site_has_enough():
    parts = partition.dirichlet(LABELS, 10, 0.1, seed=4, min_examples=40)
    assert min(map(len, parts)) >= 40
    with pytest.raises(ClientError, match="fewer than 101 examples; raise alpha"):
        partition.dirichlet(LABELS[:200], 2, 0.1, seed=4, min_examples=101)


def test_sizes_and_labels_are_those_of_the_kind_of_split():
    assert sorted(map(len, partition.iid(10, 4, seed=0))) == [2, 2, 3, 3]
    parts = partition.shards(LABELS, 50, 2, seed=1)
    assert {len(part) for part in parts} == {20}
    assert max(len(set(LABELS[part])) for part in parts) <= 2
    sizes = sorted(map(len, partition.quantity(1000, 5, 0.3, seed=2, min_examples=5)))
    assert sizes[0] >= 5
    assert sizes[-1] > 2 * sizes[0]
    rng = np.random.default_rng(1)  # goes on where it is
    first = partition.iid(100, 2, seed=rng)
    assert not np.array_equal(first[0], partition.iid(100, 2, seed=rng)[0])


@given(st.integers(1, 20), st.integers(1, 10), st.integers(0, 1000))
def test_each_site_has_the_number_of_labels_that_was_asked_for(sites, per_site, seed):
    if sites * per_site < 10:
        with pytest.raises(ClientError, match="leave some of 10 labels to nobody"):
            partition.by_label(LABELS, sites, per_site, seed=seed)
        return
    parts = partition.by_label(LABELS, sites, per_site, seed=seed)
    assert {len(set(LABELS[part])) for part in parts} == {per_site}
    assert all_of(parts) == list(range(1000))


def test_groups_stay_together_and_sites_are_of_like_size():
    rng = np.random.default_rng(5)
    writers = np.array([f"writer-{number}" for number in rng.integers(0, 100, 2000)])
    parts = partition.by_group(writers, 8, seed=1)
    found = [set(writers[part]) for part in parts]
    assert sum(map(len, found)) == len(set(writers))
    assert max(map(len, parts)) - min(map(len, parts)) <= 20


@pytest.mark.parametrize(
    ("split", "sentence"),
    [
        (lambda: partition.iid(3, 4, seed=0), "3 examples cannot be dealt out to 4 sites"),
        (lambda: partition.dirichlet(LABELS, 0, 1, seed=0), "no 0 sites"),
        (lambda: partition.dirichlet(LABELS, 2, 0, seed=0), "alpha is 0; give a number above 0"),
        (lambda: partition.dirichlet(LABELS.reshape(10, 100), 2, 1, seed=0), "the shape"),
        (lambda: partition.dirichlet([], 2, 1, seed=0), "no examples"),
        (lambda: partition.shards(LABELS[:5], 3, 2, seed=0), "cannot be cut into 6 shards"),
        (lambda: partition.by_label(LABELS, 3, 11, seed=0), "11 labels of 10"),
        (lambda: partition.by_label([0, 1], 3, 1, seed=0), "1 examples of a label cannot"),
        (lambda: partition.by_group([0, 1], 3, seed=0), "2 groups cannot"),
        (lambda: partition.record(range(1001)), "1001 labels are too many to be drawn"),
    ],
)
def test_a_split_that_cannot_be_is_refused_with_a_sentence(split, sentence):
    with pytest.raises(ClientError, match=sentence):
        split()


def test_labels_may_be_texts_tensors_or_lists():
    names = np.array(list("abcdefghij"))[LABELS]
    expected = partition.dirichlet(LABELS, 3, 1, seed=1)
    for labels in (names, torch.tensor(LABELS), LABELS.tolist()):
        parts = partition.dirichlet(labels, 3, 1, seed=1)
        assert all(np.array_equal(*pair) for pair in zip(parts, expected, strict=True))
