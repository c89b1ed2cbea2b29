"""Filters of recipes and jobs put together in Python, and of NVFlare's job folders."""

import json

import pytest

from flstream.errors import UsageError
from flstream.job import load_job
from flstream.recipe import (
    ExcludeVars,
    FedAvgRecipe,
    FilterType,
    Gaussian,
    PercentilePrivacy,
    SVTPrivacy,
)
from flstream.recipe.nvflare.convert import convert

OWN = "class Mine:\n    def __call__(self, values, block):\n        return values\n"


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "client.py").write_text("import flstream.client as flare\n")
    (tmp_path / "model.py").write_text("def build():\n    return {}\n")
    (tmp_path / "mine.py").write_text(OWN)
    return FedAvgRecipe(model="model:build", train_script="client.py", min_clients=2)


def test_filters_of_a_recipe_are_those_of_its_exported_job(recipe, tmp_path):
    recipe.add_client_output_filter(PercentilePrivacy(gamma=0.5), tasks=["train"])
    recipe.add_client_output_filter({"type": "mine.py:Mine"})
    recipe.add_server_input_filter(SVTPrivacy(fraction=0.2))
    recipe.add_client_input_filter(Gaussian(sigma=0.1))
    recipe.add_server_output_filter(ExcludeVars(exclude_vars=["b"]))
    recipe.job.to_clients(ExcludeVars("^head"), filter_type=FilterType.TASK_RESULT)
    recipe.job.to_server(ExcludeVars("^c"), filter_type=FilterType.TASK_DATA, tasks=["*"])
    folder = recipe.export(tmp_path / "exported")
    (tmp_path / "mine.py").unlink()
    filters = load_job(folder / "job.conf").filters
    assert [each.name for each in filters.up] == [
        "percentile_privacy",
        "mine.py:Mine",
        "svt_privacy",
        "exclude_vars",
    ]
    assert filters.up[0].args == {"percentile": 10.0, "gamma": 0.5}
    assert filters.up[1].place == folder / "mine.py"
    assert filters.up[2].args["fraction"] == 0.2
    assert [each.args for each in filters.down] == [
        {"sigma": 0.1},
        {"exclude_vars": ["b"]},
        {"exclude_vars": "^c"},
    ]


def test_what_a_filter_cannot_be_is_refused_where_it_is_added(recipe):
    with pytest.raises(UsageError, match="single clients"):
        recipe.add_client_output_filter(PercentilePrivacy(), clients=["site-1"])
    with pytest.raises(UsageError, match="single clients"):
        recipe.job.to(PercentilePrivacy(), "site-1")
    with pytest.raises(UsageError, match="the tasks validate"):
        recipe.add_client_input_filter(PercentilePrivacy(), tasks=["validate"])
    with pytest.raises(UsageError, match=r"builtins\.object is no filter here"):
        recipe.add_server_input_filter(object())
    with pytest.raises(UsageError, match="sigma is 'a'"):
        Gaussian(sigma="a")


def config(**lists):
    return json.dumps({"format_version": 2, **lists})


def listed(*filters, tasks=("train",)):
    return [{"tasks": list(tasks), "filters": [{"name": n, "args": a} for n, a in filters]}]


@pytest.fixture
def folder(tmp_path):
    for app in ("one", "two"):
        place = tmp_path / "job" / app / "config"
        place.mkdir(parents=True)
        client = config(
            task_result_filters=[
                *listed(
                    ("PercentilePrivacy", {"percentile": 20, "data_kinds": ["WEIGHT_DIFF"]}),
                    ("SVTPrivacy", {"fraction": 0.3, "replace": True}),
                    ("ExcludeVars", {"exclude_vars": "^bn"}),
                ),
                *listed(("PercentilePrivacy", {}), tasks=["validate"]),
            ],
            task_data_filters=listed(("ExcludeVars", {"exclude_vars": ["head.w"]}), tasks=["*"]),
        )
        (place / "config_fed_client.json").write_text(client)
    server = config(
        task_result_filters=listed(("PercentilePrivacy", {"percentile": 101})),
        task_data_filters=listed(("PercentilePrivacy", {})),
    )
    (tmp_path / "job" / "one" / "config" / "config_fed_server.json").write_text(server)
    meta = {"name": "job", "deploy_map": {"one": ["server", "site-1"], "two": ["site-2"]}}
    (tmp_path / "job" / "meta.json").write_text(json.dumps(meta))
    return tmp_path / "job"


def test_nvflares_filters_become_those_of_the_job_once_for_all_sites(folder):
    conversion = convert(folder)
    assert conversion.values["filters"] == {
        "up": [
            {"type": "percentile_privacy", "percentile": 20},
            {"type": "svt_privacy", "fraction": 0.3},
            {"type": "exclude_vars", "exclude_vars": "^bn"},
        ],
        "down": [
            {"type": "percentile_privacy"},
            {"type": "exclude_vars", "exclude_vars": ["head.w"]},
        ],
    }
    lost = {(note.path, note.kind, note.word) for note in conversion.notes if note.is_lost}
    places = [path for path, _, _ in lost if "filters" in path]
    assert set(places) == {"task_result_filters[0].filters[0]", "task_result_filters[1].filters[0]"}
    words = " ".join(word for _, _, word in lost)
    assert "at most 100" in words
    assert "applied to trainings" in words


def test_other_filters_at_another_site_have_no_counterpart(folder):
    other = config(task_result_filters=listed(("PercentilePrivacy", {"percentile": 30})))
    (folder / "two" / "config" / "config_fed_client.json").write_text(other)
    conversion = convert(folder)
    assert conversion.values["filters"]["up"][0]["percentile"] == 20
    assert any("all sites have the same filters" in note.word for note in conversion.notes)
