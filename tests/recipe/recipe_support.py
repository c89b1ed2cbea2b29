"""A recipe of the working folder's model and script, which a test may change."""

from flstream.job import load_job
from flstream.recipe import FedAvgRecipe, SimEnv


def recipe(**given):
    arguments = {"name": "small", "num_rounds": 2, "min_clients": 2, "model": "model:Net"}
    return FedAvgRecipe(**{**arguments, "train_script": "client.py", **given})


def quiet(num_clients=2, **given):
    return SimEnv(num_clients=num_clients, quiet=True, **given)


def resolved(recipe, env=None):
    """The job that a recipe makes."""
    return load_job(recipe.export("exported", env) / "job.conf")
