"""The Python face: recipes, jobs and the environment that runs them.

The names are those of NVFlare's recipes and job API, so that a program of it runs here with other
imports: ``from flstream.recipe import FedAvgRecipe, SimEnv``.
"""

from flstream.errors import UsageError
from flstream.job import JobError
from flstream.recipe.arguments import (
    DataKind,
    ExchangeFormat,
    FilterType,
    FrameworkType,
    JobMetaKey,
    TransferType,
)
from flstream.recipe.fed_job import FedJob
from flstream.recipe.recipes import (
    BaseFedJob,
    CyclicRecipe,
    ExcludeVars,
    FedAvg,
    FedAvgJob,
    FedAvgRecipe,
    FedEvalRecipe,
    FedOptRecipe,
    FedProxRecipe,
    Gaussian,
    IntimeModelSelector,
    NumpyFedAvgRecipe,
    PercentilePrivacy,
    PTFedAvg,
    PTModel,
    Recipe,
    ScaffoldRecipe,
    ScriptRunner,
    SVTPrivacy,
    SwarmLearningRecipe,
    TensorClientStreamer,
    TensorServerStreamer,
    add_cross_site_evaluation,
    add_experiment_tracking,
    add_final_global_evaluation,
    set_per_site_config,
    set_recipe_meta,
)
from flstream.recipe.sim_env import RunFailedError, RunResult, SimEnv, run
from flstream.recipe.sweeps import SweepResult, sweep

__all__ = [
    "BaseFedJob",
    "CyclicRecipe",
    "DataKind",
    "ExchangeFormat",
    "ExcludeVars",
    "FedAvg",
    "FedAvgJob",
    "FedAvgRecipe",
    "FedEvalRecipe",
    "FedJob",
    "FedOptRecipe",
    "FedProxRecipe",
    "FilterType",
    "FrameworkType",
    "Gaussian",
    "IntimeModelSelector",
    "JobError",
    "JobMetaKey",
    "NumpyFedAvgRecipe",
    "PTFedAvg",
    "PTModel",
    "PercentilePrivacy",
    "Recipe",
    "RunFailedError",
    "RunResult",
    "SVTPrivacy",
    "ScaffoldRecipe",
    "ScriptRunner",
    "SimEnv",
    "SwarmLearningRecipe",
    "SweepResult",
    "TensorClientStreamer",
    "TensorServerStreamer",
    "TransferType",
    "UsageError",
    "add_cross_site_evaluation",
    "add_experiment_tracking",
    "add_final_global_evaluation",
    "run",
    "set_per_site_config",
    "set_recipe_meta",
    "sweep",
]
