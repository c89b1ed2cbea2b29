"""The grid of a sweep: axes from texts, names that say what differs, seeds."""

import pytest

from flstream.errors import UsageError
from flstream.job.keys import short_keys
from flstream.sweep.grid import grid, keys_of, parse_axis, parse_variant


@pytest.mark.parametrize(
    ("text", "key", "values"),
    [
        ("train.args.lr=0.03,0.1", "train.args.lr", ["0.03", "0.1"]),
        (" a.b = x , y ", "a.b", ["x", "y"]),
        ("a=[1, 2],[3]", "a", ["[1, 2]", "[3]"]),
        ('w={ type = mean },"a,b"', "w", ["{ type = mean }", '"a,b"']),
    ],
)
def test_commas_separate_values_but_not_in_brackets_and_quotes(text, key, values):
    assert parse_axis(text) == (key, values)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lr", "key=value,value"),
        ("=1,2", "key=value,value"),
        ("lr=1,,2", "key=value,value"),
        ("lr=1,2,1", "1 twice"),
    ],
)
def test_an_axis_that_makes_no_sense_is_refused(text, words):
    with pytest.raises(UsageError, match=words):
        parse_axis(text)


def test_points_are_named_by_what_differs_and_seeds_follow_that_of_the_job():
    points = grid([], {"train.args.lr": ["0.1", "1"], "workflow.type": ["fedavg"]}, 7, 2)
    assert [point.name for point in points] == [
        "lr=0.1,type=fedavg,seed=7",
        "lr=0.1,type=fedavg,seed=8",
        "lr=1,type=fedavg,seed=7",
        "lr=1,type=fedavg,seed=8",
    ]
    assert [point.seed for point in points] == [7, 8, 7, 8]
    assert grid([], {"a.lr": [0.5]}, 1, 1)[0].name == "lr=0.5,seed=1"
    assert [point.name for point in grid([], {}, 3, 2)] == ["seed=3", "seed=4"]


def test_names_are_of_one_folder_each_whatever_the_values():
    names = [point.name for point in grid([], {"train.script": ["a/b.py", "a b.py", "../x"]}, 1, 1)]
    assert len(set(names)) == 3
    assert not any("/" in name or " " in name for name in names)
    names = [point.name for point in grid([], {"lr": ["0.05", "-0.05"]}, 1, 1)]
    assert names == ["lr=0.05,seed=1", "lr=-0.05,seed=1"]


def test_keys_with_the_same_end_keep_what_tells_them_apart():
    keys = ["train.args.type", "workflow.type", "rounds"]
    assert short_keys(keys) == {
        "train.args.type": "args.type",
        "workflow.type": "workflow.type",
        "rounds": "rounds",
    }


def test_a_grid_of_a_million_points_is_refused():
    with pytest.raises(UsageError, match="at most 10,000"):
        grid([], {"a": range(1000), "b": range(1000)}, 1, 1)


def test_each_variant_is_run_with_each_value_and_sets_what_it_has():
    variants = list(map(parse_variant, ["w.type=scaffold", "a.method=median, w.args.x=[1, 2]", ""]))
    points = grid(variants, {"lr": ["1", "2"]}, 7, 1)
    assert [point.name for point in points] == [
        "type=scaffold,lr=1,seed=7",
        "type=scaffold,lr=2,seed=7",
        "method=median,x=1-2,lr=1,seed=7",
        "method=median,x=1-2,lr=2,seed=7",
        "lr=1,seed=7",
        "lr=2,seed=7",
    ]
    assert points[2].values == {"a.method": "median", "w.args.x": "[1, 2]", "lr": "1"}


@pytest.mark.parametrize("text", ["lr", "lr=", "=1", "lr=1,2", "lr=1,lr=2"])
def test_a_variant_that_makes_no_sense_is_refused(text):
    with pytest.raises(UsageError, match=r"key=value,key=value|lr twice"):
        parse_variant(text)


@pytest.mark.parametrize(
    ("variants", "axes", "words"),
    [
        ([{"a": "1"}, {"a": "1"}], {}, "there twice"),
        ([{"a": "1"}, {"b": "1"}], {"b": ["1"]}, "a variant sets it, too"),
        ([{"seed": "1"}], {}, "--seeds"),
        ([], {"seed": ["1"]}, "--seeds"),
    ],
)
def test_what_is_given_twice_is_refused(variants, axes, words):
    with pytest.raises(UsageError, match=words):
        keys_of(variants, axes)
