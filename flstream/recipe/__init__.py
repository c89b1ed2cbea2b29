"""The Python face: recipes, jobs and the environment that runs them.

The names are those of NVFlare's recipes and job API, so that a program of it runs here with other
imports: ``from flstream.recipe import FedAvgRecipe, SimEnv``.
"""

from flstream.recipe.components import (
    ExchangeFormat,
    FedAvg,
    FrameworkType,
    IntimeModelSelector,
    PTFedAvg,
    PTModel,
    ScriptRunner,
    TensorClientStreamer,
    TensorServerStreamer,
    TransferType,
)
from flstream.recipe.fed_job import FedJob
from flstream.recipe.recipes import (
    CyclicRecipe,
    FedAvgRecipe,
    NumpyFedAvgRecipe,
    Recipe,
    SwarmLearningRecipe,
    add_experiment_tracking,
)
from flstream.recipe.run_result import RunFailedError, RunResult
from flstream.recipe.sim_env import SimEnv

__all__ = [
    "CyclicRecipe",
    "ExchangeFormat",
    "FedAvg",
    "FedAvgRecipe",
    "FedJob",
    "FrameworkType",
    "IntimeModelSelector",
    "NumpyFedAvgRecipe",
    "PTFedAvg",
    "PTModel",
    "Recipe",
    "RunResult",
    "RunFailedError",
    "ScriptRunner",
    "SimEnv",
    "SwarmLearningRecipe",
    "TensorClientStreamer",
    "TensorServerStreamer",
    "TransferType",
    "add_experiment_tracking",
]
