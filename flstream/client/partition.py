"""Seeded splits of one data set over the sites of a job, as papers make them.

Each function returns the indices of each site's examples, and every example is at one site. Sites
that make the same call with the same seed agree on the split without talking::

    parts = partition.dirichlet(labels, sites=10, alpha=0.5, seed=7)
    mine = parts[flare.system_info()["site_index"]]
    partition.record(labels[mine])  # the report draws it
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from flstream.client.session import current
from flstream.errors import ClientError

SPLIT = "split.json"
"""Name of the file in a site's folder with its number of examples by label."""

__all__ = ["by_group", "by_label", "dirichlet", "iid", "quantity", "record", "shards"]

Part = npt.NDArray[np.int64]
# Draws after which a split with enough examples everywhere is given up.
_MOST_DRAWS = 10_000
_MOST_LABELS = 1000


def iid(examples: int, sites: int, *, seed: int | np.random.Generator) -> list[Part]:
    """Deal out examples at random, to each site as many as to any other, or one more.

    Args:
        examples: Number of examples.
        sites: Number of sites.
        seed: Seed, or generator to draw from.

    Raises:
        ClientError: There are fewer examples than sites.
    """
    _expect(examples >= sites > 0, f"{examples} examples cannot be dealt out to {sites} sites")
    return list(np.array_split(np.random.default_rng(seed).permutation(examples), sites))


def dirichlet(
    labels: npt.ArrayLike,
    sites: int,
    alpha: float,
    *,
    seed: int | np.random.Generator,
    min_examples: int = 1,
) -> list[Part]:
    """Deal out the examples of each label in shares from a Dirichlet distribution.

    Hsu, Qi and Brown 2019, "Measuring the Effects of Non-Identical Data Distribution for Federated
    Visual Classification" (arXiv:1909.06335), in the form that most experiments use.

    Args:
        labels: Label of each example, of shape (examples,) and any type that NumPy sorts.
        sites: Number of sites.
        alpha: Concentration, above 0: near 0 each label is at one site, and with a large one the
            sites have all labels in equal shares.
        seed: Seed, or generator to draw from.
        min_examples: Examples that a site has at least; shares are drawn again until each has.

    Raises:
        ClientError: An argument makes no sense, or no such split was found; the message says which.
    """
    of_label = _by_value(labels)
    _expect(sites > 0, f"there are no {sites} sites")
    _expect(alpha > 0, f"alpha is {alpha}; give a number above 0")
    rng = np.random.default_rng(seed)
    for _ in range(_MOST_DRAWS):
        shares: list[list[Part]] = [[] for _ in range(sites)]
        for examples in of_label:
            mixed = rng.permutation(examples)
            cuts = np.cumsum(rng.dirichlet([alpha] * sites))[:-1] * len(mixed)
            for share, part in zip(shares, np.split(mixed, cuts.astype(int)), strict=True):
                share.append(part)
        parts = [np.concatenate(share) for share in shares]
        if min(map(len, parts)) >= min_examples:
            return parts
    raise ClientError(
        f"in {_MOST_DRAWS} draws some site had fewer than {min_examples} examples; raise alpha "
        f"({alpha}), or lower min_examples or the number of sites ({sites})"
    )


def shards(
    labels: npt.ArrayLike, sites: int, per_site: int, *, seed: int | np.random.Generator
) -> list[Part]:
    """Sort examples by label, cut equal shards, and deal out as many to each site.

    McMahan et al. 2017, "Communication-Efficient Learning of Deep Networks from Decentralized Data"
    (arXiv:1602.05629): with two shards a site, most sites have two labels.

    Args:
        labels: Label of each example, of shape (examples,).
        sites: Number of sites.
        per_site: Shards of each site.
        seed: Seed, or generator to draw from.

    Raises:
        ClientError: There are fewer examples than shards.
    """
    order = np.concatenate(_by_value(labels))
    count = sites * per_site
    _expect(len(order) >= count > 0, f"{len(order)} examples cannot be cut into {count} shards")
    pieces = np.array_split(order, count)
    dealt = np.random.default_rng(seed).permutation(count).reshape(sites, per_site)
    return [np.concatenate([pieces[shard] for shard in row]) for row in dealt]


def by_label(
    labels: npt.ArrayLike, sites: int, per_site: int, *, seed: int | np.random.Generator
) -> list[Part]:
    """Give each site a number of labels, and equal parts of their examples.

    Li et al. 2022, "Federated Learning on Non-IID Data Silos" (arXiv:2102.02079), its
    quantity-based label imbalance; here the labels are dealt out in turn, so that each is at some
    site.

    Args:
        labels: Label of each example, of shape (examples,).
        sites: Number of sites.
        per_site: Labels of each site.
        seed: Seed, or generator to draw from.

    Raises:
        ClientError: There are fewer labels than a site is to have, or more than all sites have
            together, or too few examples of one.
    """
    of_label = _by_value(labels)
    count = len(of_label)
    _expect(0 < per_site <= count, f"a site cannot have {per_site} labels of {count}")
    _expect(
        sites * per_site >= count,
        f"{sites} sites of {per_site} labels leave some of {count} labels to nobody",
    )
    rng = np.random.default_rng(seed)
    order = rng.permutation(count)
    holders: list[list[int]] = [[] for _ in range(count)]
    for site in range(sites):
        for turn in range(per_site):
            holders[order[(site * per_site + turn) % count]].append(site)
    shares: list[list[Part]] = [[] for _ in range(sites)]
    for examples, having in zip(of_label, holders, strict=True):
        _expect(
            len(examples) >= len(having),
            f"{len(examples)} examples of a label cannot be dealt out to {len(having)} sites",
        )
        parts = np.array_split(rng.permutation(examples), len(having))
        for site, part in zip(having, parts, strict=True):
            shares[site].append(part)
    return [np.concatenate(share) for share in shares]


def by_group(groups: npt.ArrayLike, sites: int, *, seed: int | np.random.Generator) -> list[Part]:
    """Keep the examples of each group together, such as a writer's or a patient's.

    The largest groups are dealt out first, each to the site that has the fewest examples by then.

    Args:
        groups: Group of each example, of shape (examples,).
        sites: Number of sites.
        seed: Seed, or generator to draw from: it decides among groups, and sites, of equal size.

    Raises:
        ClientError: There are fewer groups than sites.
    """
    of_group = _by_value(groups)
    _expect(
        len(of_group) >= sites > 0, f"{len(of_group)} groups cannot be dealt out to {sites} sites"
    )
    rng = np.random.default_rng(seed)
    mixed = [of_group[group] for group in rng.permutation(len(of_group))]
    shares: list[list[Part]] = [[] for _ in range(sites)]
    sizes = np.zeros(sites, np.int64)
    for examples in sorted(mixed, key=len, reverse=True):
        site = int(sizes.argmin())
        shares[site].append(examples)
        sizes[site] += len(examples)
    return [np.concatenate(share) for share in shares]


def quantity(
    examples: int,
    sites: int,
    alpha: float,
    *,
    seed: int | np.random.Generator,
    min_examples: int = 1,
) -> list[Part]:
    """Deal out examples at random, in sizes from a Dirichlet distribution.

    Li et al. 2022 (arXiv:2102.02079), its quantity skew.

    Args:
        examples: Number of examples.
        sites: Number of sites.
        alpha: Concentration, above 0: the smaller, the more the sizes differ.
        seed: Seed, or generator to draw from.
        min_examples: Examples that a site has at least.

    Raises:
        ClientError: An argument makes no sense, or no such split was found; the message says which.
    """
    return dirichlet(
        np.zeros(examples, np.int8), sites, alpha, seed=seed, min_examples=min_examples
    )


def record(labels: npt.ArrayLike) -> None:
    """Record how many examples of each label this site trains on, for the report.

    The counts are in ``split.json`` of the site's folder. Called again, they are replaced.

    Args:
        labels: Label of each of the site's examples, of shape (examples,).

    Raises:
        ClientError: There are more than 1,000 labels, or the file cannot be written.
    """
    try:
        array: npt.NDArray[Any] = np.asarray(labels)
        distinct, counts = np.unique(array, return_counts=True)
    except (TypeError, ValueError) as error:
        raise ClientError(f"labels cannot be told apart: {error}; give them one type") from error
    if array.ndim != 1:
        raise ClientError(f"labels have the shape {array.shape}; give one for each example")
    if len(distinct) > _MOST_LABELS:
        raise ClientError(
            f"{len(distinct)} labels are too many to be drawn; record coarser ones, such as bins"
        )
    named = {str(label): int(count) for label, count in zip(distinct, counts, strict=True)}
    session = current()
    if session.turns.place.rank:
        return  # rank 0 writes the same
    path = Path(session.constants()["site_dir"], SPLIT)
    temporary = path.with_name(f"{SPLIT}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(msgspec.json.encode(named))
        os.replace(temporary, path)
    except OSError as error:
        raise ClientError(f"{path} cannot be written: {error.strerror}") from error


def _by_value(values: npt.ArrayLike) -> list[Part]:
    """Return the indices of the examples of each value, in rising order of the values."""
    array: npt.NDArray[Any] = np.asarray(values)
    _expect(array.ndim == 1, f"labels have the shape {array.shape}; give one for each example")
    _expect(len(array) > 0, "there are no examples")
    order = np.argsort(array, kind="stable").astype(np.int64)
    _, starts = np.unique(array[order], return_index=True)
    return np.split(order, starts[1:])


def _expect(holds: bool, flaw: str) -> None:
    if not holds:
        raise ClientError(f"the data cannot be split so: {flaw}")
