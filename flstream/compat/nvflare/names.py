"""Names of NVFlare's recipes, jobs and transfers, by the modules that have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flstream.recipe.nvflare import COMPONENTS
from flstream.recipe.nvflare_table import CLASSES

_RECIPE, _TRANSFER = "flstream.recipe", "flstream.compat.nvflare.transfer"

_MODULES = """
job_config.api job_config.defs | FedJob FilterType
job_config.script_runner | ScriptRunner FrameworkType BaseScriptRunner=ScriptRunner
job_config.base_fed_job app_opt.pt.job_config.base_fed_job | BaseFedJob
app_opt.pt.job_config.fed_avg app_common.np.job_config.fed_avg | FedAvgJob
app_opt.pt.job_config.model | PTModel
recipe | SimEnv FedAvgRecipe Run=RunResult add_cross_site_evaluation add_experiment_tracking
    add_final_global_evaluation set_per_site_config set_recipe_meta
recipe.sim_env | SimEnv
recipe.run | Run=RunResult
recipe.spec | Recipe ExecEnv=SimEnv
recipe.fedavg | FedAvgRecipe
recipe.cyclic | CyclicRecipe
recipe.utils | add_cross_site_evaluation add_experiment_tracking add_final_global_evaluation
    set_per_site_config set_recipe_meta
app_opt.pt.recipes | FedAvgRecipe CyclicRecipe FedEvalRecipe FedOptRecipe FedProxRecipe
    ScaffoldRecipe SwarmLearningRecipe
app_opt.pt.recipes.fedavg | FedAvgRecipe
app_opt.pt.recipes.cyclic | CyclicRecipe
app_opt.pt.recipes.fedeval | FedEvalRecipe
app_opt.pt.recipes.fedopt | FedOptRecipe
app_opt.pt.recipes.fedprox | FedProxRecipe
app_opt.pt.recipes.scaffold | ScaffoldRecipe
app_opt.pt.recipes.swarm | SwarmLearningRecipe
app_common.np.recipes | NumpyFedAvgRecipe
app_common.np.recipes.fedavg | NumpyFedAvgRecipe
client.config fuel.utils.constants | ExchangeFormat TransferType FrameworkType
apis.dxo | DataKind
apis.job_def | JobMetaKey
app_common.filters app_opt.pt.filters | PercentilePrivacy SVTPrivacy ExcludeVars
app_common.filters.percentile_privacy | PercentilePrivacy
app_common.filters.svt_privacy | SVTPrivacy
app_common.filters.exclude_vars | ExcludeVars
app_common.workflows.fedavg | FedAvg
app_opt.pt.fedavg | PTFedAvg
app_common.widgets.intime_model_selector app_common.widgets | IntimeModelSelector
app_opt.pt.tensor_stream.server app_opt.tensor_stream.server | TensorServerStreamer
app_opt.pt.tensor_stream.client app_opt.tensor_stream.client | TensorClientStreamer
"""
"""Names of :mod:`flstream.recipe` by module; ``Run=RunResult`` where they differ."""

_COMPONENT_MODULES = """
app_common.workflows.scatter_and_gather app_common.workflows.scatter_and_gather_scaffold
    app_common.workflows.cyclic_ctl app_common.workflows.cyclic app_common.workflows.scaffold
    app_common.workflows.cross_site_model_eval app_common.workflows.cross_site_eval
    app_common.workflows.global_model_eval app_opt.pt.file_model_persistor
    app_common.np.np_model_persistor app_common.np.np_model_locator app_opt.pt.file_model_locator
    app_common.aggregators app_common.aggregators.intime_accumulate_model_aggregator
    app_common.aggregators.accumulate_model_aggregator app_common.executors.client_api_executor
    app_common.shareablegenerators app_common.shareablegenerators.full_model_shareable_generator
    app_common.widgets.convert_to_fed_event app_common.widgets.validation_json_generator
    app_common.widgets.decomposer_reg app_common.widgets.metric_relay
    app_opt.tracking.tb.tb_receiver app_opt.tracking.mlflow.mlflow_receiver
    app_opt.pt.in_process_client_api_executor app_opt.pt.client_api_launcher_executor
    app_common.launchers.subprocess_launcher
"""
"""Modules of what a job folder names by class; any of them has all of those names."""

_TRANSFER_MODULES = {
    "app_opt.pt.tensor_downloader": (
        *("TensorConsumer", "TensorDownloadable", "add_tensors", "download_tensors"),
    ),
    "app_opt.pt.decomposers": ("TensorDecomposer",),
    "fuel.utils.fobs": ("register",),
    "fuel.f3.streaming.obj_downloader": ("ObjectDownloader",),
    "fuel.f3.streaming.cacheable": ("CacheableObject",),
}

_WITHOUT_NAMES = """
recipe.prod_env recipe.poc_env recipe.fedstats recipe.fed_task app_common.np.recipes.lr
app_common.np.recipes.lr.fedavg app_common.np.recipes.cross_site_eval app_opt.sklearn
app_opt.sklearn.recipes collab app_opt.flower app_opt.flower.recipe app_opt.pt.recipes.fedce
app_opt.pt.recipes.fedavg_he apis.fl_context apis.shareable
app_common.workflows.model_controller app_common.workflows.base_fedavg apis.impl.controller
app_common.workflows.etl_controller apis.executor apis.fl_component apis.controller_spec
job_config.stats_job app_common.psi.recipes.dh_psi app_opt.xgboost.recipes apis.signal
app_opt.pt.quantization.quantizer app_opt.pt.quantization.dequantizer apis.event_type
app_common.utils.math_utils app_opt.tf.recipes app_opt.tf.recipes.fedavg app_opt.tf.recipes.cyclic
"""
"""Modules of which flstream has nothing, and says why."""

_OWN_ENV = (
    "flstream has no servers and clients that stay; use SimEnv, or a Ray cluster by --engine ray"
)
_OWN_WORKFLOW = "it is a workflow of your own here (docs/own-workflow.md)"
_OWN_RULE = "write its rule as a class for aggregation.method, or as a workflow of your own"
REASONS: Mapping[str, str] = {
    **{name: target[2:] for name, target in CLASSES.items() if target.startswith("- ")},
    **dict.fromkeys(("ProdEnv", "PocEnv"), _OWN_ENV),
    **dict.fromkeys(
        (
            *("Controller", "ModelController", "BaseFedAvg", "ETLController", "FedTaskRecipe"),
            *("DXO", "Shareable", "FLContext", "FLComponent", "Task", "ClientTask", "Signal"),
            *("EventType", "DhPSIRecipe", "CollabRecipe", "collab", "parse_compare_criteria"),
        ),
        _OWN_WORKFLOW,
    ),
    **dict.fromkeys(
        ("XGBHorizontalRecipe", "XGBVerticalRecipe", "XGBBaggingRecipe"),
        "trees are no tensors that have a mean",
    ),
    **dict.fromkeys(
        ("KMeansFedAvgRecipe", "SVMFedAvgRecipe"), f"its answers have no mean; {_OWN_RULE}"
    ),
    **dict.fromkeys(("FedCERecipe", "PTFedCEHelper"), _OWN_RULE),
    **dict.fromkeys(
        ("FedAvgLrRecipe", "FedStatsRecipe", "StatsJob"),
        "its answers are no model; write a workflow of your own with answer_bodies",
    ),
    "Executor": "write a script (train.script), or a class with train and evaluate (train.learner)",
    "FedAvgRecipeWithHE": "nothing is encrypted between processes of one machine; use FedAvgRecipe",
    "FlowerRecipe": "flstream simulate FOLDER runs a Flower app itself",
    "NumpyCrossSiteEvalRecipe": "use FedEvalRecipe for one model, or add_cross_site_evaluation",
    "SklearnFedAvgRecipe": "use NumpyFedAvgRecipe, and the estimator's arrays as the model",
}
"""What to do instead, by names without a counterpart."""


def job_names() -> dict[str, dict[str, Any]]:
    """Return the places of all names, by module."""
    names: dict[str, dict[str, Any]] = {}
    for row in _MODULES.replace("\n    ", " ").strip().splitlines():
        modules, _, listed = row.partition("|")
        pairs = [name.partition("=") for name in listed.split()]
        places = {name: f"{_RECIPE}:{ours or name}" for name, _, ours in pairs}
        for module in modules.split():
            names.setdefault(module, {}).update(places)
    for module in _COMPONENT_MODULES.split():
        names.setdefault(module, {}).update(COMPONENTS)
    for module, listed_names in _TRANSFER_MODULES.items():
        names[module] = {name: f"{_TRANSFER}:{name}" for name in listed_names}
    for module in _WITHOUT_NAMES.split():
        names.setdefault(module, {})
    names[""] = {name: f"{_RECIPE}:{name}" for name in ("FedJob", "FilterType")}
    return names
