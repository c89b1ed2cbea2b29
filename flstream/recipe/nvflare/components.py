"""NVFlare's components: what each becomes, or why none is needed."""

from __future__ import annotations

from collections.abc import Mapping

from flstream.recipe.nvflare.arguments import (
    Rule,
    default_metric,
    exclude,
    key_metric,
    lost,
    negate,
    only,
    server_optimizer,
    site_weights,
    unneeded,
)
from flstream.recipe.nvflare.executors import LAUNCH_ONCE
from flstream.recipe.nvflare.known_classes import KnownClass, no_counterpart, not_needed
from flstream.recipe.nvflare.models import checkpoint, model, nested_list, numpy_model
from flstream.recipe.nvflare.scripts import command

_AS_SENT = unneeded("tensors travel in their own dtype")
_MODELS = unneeded("models are in the run directory, as checkpoints/round-NNNN.safetensors")
_ONE_OF_EACH = unneeded("a job has one of each")

_AGGREGATOR = KnownClass(
    "becomes",
    "aggregation.method = mean, the default",
    {
        "exclude_vars": exclude,
        "aggregation_weights": site_weights,
        "expected_data_kind": unneeded("an update says itself whether it is a difference"),
        "weigh_by_local_iter": only(
            True,
            "updates are weighted by NUM_STEPS_CURRENT_ROUND",
            "updates are weighted by NUM_STEPS_CURRENT_ROUND wherever a script sends it",
        ),
    },
)
_SELECTOR = KnownClass(
    "becomes",
    "the metric that decides which round is the best",
    {
        "key_metric": key_metric,
        "negate_key_metric": negate,
        "validation_metric_name": unneeded("metrics come with the update"),
        "weigh_by_local_iter": only(
            True, "metrics are weighted as updates are", "metrics are weighted as updates are"
        ),
        "aggregation_weights": lost("metrics are averaged without factors of sites"),
    },
    default_metric,
)
_TRACKING_ARGS: Mapping[str, Rule] = {
    "events": unneeded("all that a script logs is tracked"),
    "tb_folder": unneeded("event files are in the folder tensorboard of the run directory"),
    "tracking_uri": lost("the store is mlflow/mlflow.db of the run directory"),
    "artifact_location": lost("the store is mlflow/mlflow.db of the run directory"),
    "kw_args": lost("experiment and run have the names of the job and of its run directory"),
}

COMPONENTS: Mapping[str, KnownClass] = {
    "PTFileModelPersistor": KnownClass(
        "becomes",
        "the section model",
        {
            "model": model,
            "source_ckpt_file_full_name": checkpoint,
            "exclude_vars": exclude,
            "global_model_file_name": _MODELS,
            "best_global_model_file_name": _MODELS,
            "allow_numpy_conversion": _AS_SENT,
            "load_weights_only": unneeded("files of torch are loaded as weights only"),
            "filter_id": lost(""),
        },
    ),
    "NPModelPersistor": KnownClass(
        "becomes",
        "the section model",
        {
            "initial_model": nested_list,
            "model": nested_list,
            "source_npy_file_full_name": checkpoint,
            "source_ckpt_file_full_name": checkpoint,
            "model_dir": _MODELS,
            "model_name": _MODELS,
        },
        numpy_model,
    ),
    **dict.fromkeys(
        ("InTimeAccumulateWeightedAggregator", "AccumulateWeightedAggregator"), _AGGREGATOR
    ),
    **dict.fromkeys(
        ("IntimeModelSelector", "IntimeModelSelectionHandler"),
        _SELECTOR,
    ),
    "SubprocessLauncher": KnownClass(
        "becomes",
        "the section train",
        {
            "script": command,
            "launch_once": LAUNCH_ONCE,
            "clean_up_script": lost("nothing is run after a script"),
            "shutdown_timeout": unneeded("a script's process ends with the run"),
        },
    ),
    "TBAnalyticsReceiver": KnownClass(
        "becomes",
        "tracking.type = tensorboard",
        _TRACKING_ARGS,
        values={"tracking.type": "tensorboard"},
    ),
    "MLflowReceiver": KnownClass(
        "becomes", "tracking.type = mlflow", _TRACKING_ARGS, values={"tracking.type": "mlflow"}
    ),
    **no_counterpart(
        "nothing is sent to Weights & Biases; report.html of the run draws what is logged",
        "WandBReceiver",
    ),
    "PTFedOptModelShareableGenerator": KnownClass(
        "becomes",
        "the section server_optimizer",
        {
            "optimizer_args": server_optimizer,
            "lr_scheduler_args": lost("server_optimizer.learning_rate is one number"),
            "source_model": _ONE_OF_EACH,
            "device": unneeded("the server computes on the CPU, range by range"),
        },
    ),
    **not_needed(
        "models travel as tensors",
        "FullModelShareableGenerator",
        "SimpleModelShareableGenerator",
        "TensorServerStreamer",
        "TensorClientStreamer",
        "DecomposerRegister",
    ),
    **not_needed(
        "a site's process talks to the server itself",
        "CellPipe",
        "FilePipe",
        "ExternalConfigurator",
        "ClientAPIConfigurator",
    ),
    **not_needed(
        "what a script logs is in events.jsonl, report.html and the tracker",
        "MetricRelay",
        "MetricHandler",
        "ConvertToFedEvent",
        "MetricsArtifactWriter",
        "JobLogStreamer",
        "JobLogReceiver",
        "LogReceiver",
        "JobStatsReporter",
    ),
    **not_needed(
        "a run finds its own models",
        "PTFileModelLocator",
        "NPModelLocator",
    ),
    **not_needed(
        "scores are in summary.json; those of the workflow cross_site in cross_site/",
        "ValidationJsonGenerator",
        "CWEResultPrinter",
    ),
}
"""Components by the name of their class."""
