"""Groups of compared runs, and the settings that tell them apart."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from statistics import mean
from typing import NamedTuple

from flstream.job.keys import short_keys
from flstream.report.drawing import SERIES
from flstream.report.run_record import RunRecord
from flstream.report.text import path_labels
from flstream.text import printable

_MOST_LINES = 8
_METHOD_KEYS = ("workflow.type", "aggregation.method")


def series_color(index: int) -> str:
    """Return the colour of a compared run, by its index."""
    return SERIES[index % len(SERIES)]


class RunGroup(NamedTuple):
    """Group of compared runs, one line in charts.

    Attributes:
        label: Label, which no other group has.
        runs: Indices of its runs.
        color: Colour of its line; empty for a group that charts leave out.
    """

    label: str
    runs: Sequence[int]
    color: str


def groups_of(
    runs: Sequence[RunRecord],
    labels: Sequence[str],
    group_by: Sequence[str] = (),
    over: str = "seed",
) -> list[RunGroup]:
    """Group runs that differ in one key alone, or those with the same values of some keys.

    Args:
        runs: The runs.
        labels: Their labels.
        group_by: Dotted keys by whose values runs are grouped; none for all keys but ``over``.
        over: Key that tells the runs of a group apart, with those that have its value in each run.

    Returns:
        The groups; if one has several runs, they are labelled by the settings in which they differ.
    """
    members = _members(runs, group_by, over)
    drawn = _leading(members, runs)
    names = list(labels)
    if group_by or len(members) < len(runs):
        firsts = [runs[group[0]] for group in members]
        differing = differing_keys(firsts, _following(runs, over))
        # The method comes first, as other keys often follow from it.
        differing.sort(key=lambda key: key not in _METHOD_KEYS)
        keys = _telling_keys(firsts, group_by or differing)
        short = short_keys(keys or group_by)
        texts = {key: _value_texts(firsts, key) for key in short}
        for place, group in enumerate(members):
            parts = (f"{short[key]}={text}" for key in short if (text := texts[key][place]))
            names[group[0]] = printable(", ".join(parts)) or names[group[0]]
    for group in members:
        if not _is_whole(runs[group[0]]) and any(_is_whole(run) for run in runs):
            names[group[0]] += " (unfinished)"
    counts = Counter(names[group[0]] for group in members)
    groups = []
    for group in members:
        name, first = names[group[0]], labels[group[0]]
        color = series_color(drawn.index(group)) if group in drawn else ""
        groups.append(RunGroup(f"{name} ({first})" if counts[name] > 1 else name, group, color))
    return groups


def _members(runs: Sequence[RunRecord], group_by: Sequence[str], over: str) -> list[list[int]]:
    """Return the indices of each group's runs."""
    groups: dict[object, list[int]] = {}
    left_out = _following(runs, over)
    for index, run in enumerate(runs):
        if group_by:
            chosen = tuple(run.values.get(key) for key in group_by)
            groups.setdefault((_is_whole(run), chosen), []).append(index)
            continue
        own = tuple((key, value) for key, value in run.values.items() if key not in left_out)
        values: tuple[object, ...] = (*own, _is_whole(run)) if own else ()
        place = run.values.get(over)
        is_new = any(runs[other].values.get(over) == place for other in groups.get(values, []))
        # A run without settings is like no other, and nor is a repetition.
        groups.setdefault(index if is_new or not values else values, []).append(index)
    return list(groups.values())


def _is_whole(run: RunRecord) -> bool:
    """Return whether a run may count in a mean: one that was cut off has scores of fewer rounds."""
    return run.status == "finished"


def _following(runs: Sequence[RunRecord], over: str) -> set[str]:
    """Return a key and those with its value in each run, as ``split_seed = ${seed}`` has it."""
    same = [
        {key for key, value in run.values.items() if value == run.values.get(over)} for run in runs
    ]
    return {over} | set.intersection(*same)


def _leading(members: Sequence[list[int]], runs: Sequence[RunRecord]) -> list[list[int]]:
    """Return the groups that charts draw: at most eight, those with the best mean score."""
    if len(members) <= _MOST_LINES:
        return list(members)
    sign = 1 if runs[0].history.facts.key_metric_mode == "min" else -1

    def place(group: Sequence[int]) -> float:
        scores = [best.value for at in group if (best := runs[at].summary.best) is not None]
        return sign * mean(scores) if scores else math.inf

    ranked = sorted(members, key=place)[:_MOST_LINES]
    return [group for group in members if group in ranked]


def _telling_keys(runs: Sequence[RunRecord], keys: Sequence[str]) -> list[str]:
    """Return those of the keys that tell runs apart which the keys before them do not."""
    telling, known = list[str](), 1
    for key in keys:
        values = {tuple(run.values.get(known_key) for known_key in (*telling, key)) for run in runs}
        if len(values) > known:
            telling.append(key)
            known = len(values)
    return telling


def _value_texts(runs: Sequence[RunRecord], key: str) -> list[str]:
    """Return a setting's value in each run as labels have it; of paths, what tells them apart."""
    texts = [run.values.get(key, "").strip('"') for run in runs]
    paths = {text: Path(text) for text in texts if text.startswith("/")}
    short = dict(zip(paths, path_labels([*paths.values()]), strict=True)) if paths else {}
    return [short.get(text, text) for text in texts]


def all_keys(runs: Sequence[RunRecord]) -> list[str]:
    """Return the keys that any run has; those that all have come first."""
    counts = Counter(key for run in runs for key in run.values)
    return sorted(counts, key=lambda key: counts[key] < len(runs))


def differing_keys(runs: Sequence[RunRecord], but: Collection[str] = ()) -> list[str]:
    """Return the keys but some whose values differ; to lack a key is a value, too."""
    keys = [key for key in all_keys(runs) if key not in but]
    return [key for key in keys if len({run.values.get(key) for run in runs}) > 1]


def varying_keys(runs: Sequence[RunRecord], groups: Sequence[RunGroup]) -> list[str]:
    """Return the keys in which runs of a group differ, by their short names."""
    varying = (differing_keys([runs[at] for at in group.runs]) for group in groups)
    return [*short_keys(dict.fromkeys(key for keys in varying for key in keys)).values()]
