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
from flstream.recipe.fedavg_recipes import (
    FedAvgRecipe,
    FedOptRecipe,
    FedProxRecipe,
    NumpyFedAvgRecipe,
)
from flstream.recipe.filters import (
    ExcludeVars,
    FilterType,
    Gaussian,
    PercentilePrivacy,
    SVTPrivacy,
)
from flstream.recipe.recipes import (
    Recipe,
    add_cross_site_evaluation,
    add_experiment_tracking,
)
from flstream.recipe.run_result import RunFailedError, RunResult
from flstream.recipe.sim_env import SimEnv
from flstream.recipe.workflow_recipes import (
    CyclicRecipe,
    FedEvalRecipe,
    ScaffoldRecipe,
    SwarmLearningRecipe,
)

__all__ = [
    "CyclicRecipe",
    "ExchangeFormat",
    "ExcludeVars",
    "FedAvg",
    "FedAvgRecipe",
    "FedEvalRecipe",
    "FedJob",
    "FedOptRecipe",
    "FedProxRecipe",
    "FilterType",
    "FrameworkType",
    "Gaussian",
    "IntimeModelSelector",
    "NumpyFedAvgRecipe",
    "PTFedAvg",
    "PTModel",
    "PercentilePrivacy",
    "Recipe",
    "RunResult",
    "RunFailedError",
    "ScaffoldRecipe",
    "SVTPrivacy",
    "ScriptRunner",
    "SimEnv",
    "SwarmLearningRecipe",
    "TensorClientStreamer",
    "TensorServerStreamer",
    "TransferType",
    "add_cross_site_evaluation",
    "add_experiment_tracking",
]
