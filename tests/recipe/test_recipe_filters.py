"""Filters of recipes and jobs put together in Python, and of NVFlare's job folders."""

import json

import pytest

from flstream.job import load_job
from flstream.recipe import (
    ExcludeVars,
    FedAvgRecipe,
    FilterType,
    Gaussian,
    PercentilePrivacy,
    SVTPrivacy,
)
from flstream.recipe.nvflare import convert

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
    names = " ".join(spec.name for spec in filters.up)
    assert names == "percentile_privacy mine.py:Mine svt_privacy exclude_vars"
    assert dict(filters.up[0].args) == {"percentile": 10.0, "gamma": 0.5}
    assert filters.up[1].type == f"{folder / 'mine.py'}:Mine"
    assert filters.up[2].args.fraction == 0.2
    noise, *excluded = (dict(spec.args) for spec in filters.down)
    assert (noise, excluded) == ({"sigma": 0.1}, [{"exclude_vars": v} for v in (["b"], "^c")])


@pytest.mark.parametrize("percentile", [20, 30])
def test_nvflares_filters_become_those_of_the_job_once_for_all_sites(tmp_path, percentile):
    def filters(tasks, *named):
        parts = [{"name": name, "args": args} for name, args in named]
        return [{"tasks": tasks, "filters": parts}]

    for app, first in (("one", 20), ("two", percentile)):
        (tmp_path / app).mkdir()
        up = filters(["train"], ("PercentilePrivacy", {"percentile": first}))
        up += filters(["validate"], ("PercentilePrivacy", {}))
        down = filters(["*"], ("ExcludeVars", {"exclude_vars": ["head.w"]}))
        text = json.dumps({"task_result_filters": up, "task_data_filters": down})
        (tmp_path / app / "config_fed_client.json").write_text(text)
    meta = {"name": "job", "deploy_map": {"one": ["server", "site-1"], "two": ["site-2"]}}
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    conversion = convert(tmp_path)
    assert conversion.values["filters"] == {
        "up": [{"type": "percentile_privacy", "args": {"percentile": 20}}],
        "down": [{"type": "exclude_vars", "args": {"exclude_vars": ["head.w"]}}],
    }
    words = str(conversion.notes)
    assert "applied to trainings" in words
    assert ("all sites have the same filters" in words) == (percentile == 30)
