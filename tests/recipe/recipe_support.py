"""A recipe of the working folder's model and script, which a test may change."""

from flstream.job import load_job
from flstream.recipe import FedAvgRecipe, SimEnv


def recipe(**changes):
    arguments = {"name": "small", "num_rounds": 2, "min_clients": 2, "model": "model:Net"}
    return FedAvgRecipe(**{**arguments, "train_script": "client.py", **changes})


def quiet(num_clients=2, **options):
    return SimEnv(num_clients=num_clients, quiet=True, **options)


def resolved(recipe, env=None):
    """The job that a recipe makes."""
    return load_job(recipe.export("exported", env) / "job.conf")
