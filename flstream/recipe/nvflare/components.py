"""NVFlare's components and filters: what each becomes, or why none is needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from flstream.recipe.filters import ExcludeVars, PercentilePrivacy, SVTPrivacy
from flstream.recipe.nvflare.arguments import (
    SERVER_OPTIMIZER,
    default_metric,
    exclude,
    key_metric,
    negate,
    site_weights,
)
from flstream.recipe.nvflare.draft import Argument, ConfiguredClass, JobDraft
from flstream.recipe.nvflare.executors import LAUNCH_ONCE
from flstream.recipe.nvflare.models import checkpoint, model, nested_list, numpy_model
from flstream.recipe.nvflare.notes import Note
from flstream.recipe.nvflare.rules import (
    AS_SENT,
    KnownClass,
    Rule,
    later,
    lost,
    no_counterpart,
    not_needed,
    only,
    unneeded,
)
from flstream.recipe.nvflare.scripts import command

_MODELS = unneeded("models are in the run directory, as checkpoints/round-NNNN.safetensors")

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
            "allow_numpy_conversion": AS_SENT,
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
        "becomes", "the section server_optimizer", SERVER_OPTIMIZER
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


# A recipe takes these filters with the names and arguments that they have in NVFlare.
_ALIKE = {each.__name__: each for each in (PercentilePrivacy, SVTPrivacy, ExcludeVars)}
_TRAINING = {"train", "*"}


def filter_of(made: ConfiguredClass) -> dict[str, Any]:
    """Return the section of a job file's filter that an object of a known class becomes."""
    args = {name: value for name, value in made.args.items() if name not in _UNNEEDED}
    return {"type": _ALIKE[made.short_name or ""].type, "args": args}


def is_for_trainings(tasks: object) -> bool:
    """Whether filters for these tasks are for trainings, too."""
    listed = [tasks] if isinstance(tasks, str) else tasks
    return not isinstance(listed, list) or bool(_TRAINING & set(map(str, listed)))


def _in_the_filter(draft: JobDraft, argument: Argument) -> Note:
    return argument.becomes("a key of the filter")


_UNNEEDED = {
    "data_kinds": unneeded("weights and differences are filtered alike, by their changes"),
    "replace": unneeded("as many numbers as fraction says are shared, none twice"),
}


FILTERS: Mapping[str, KnownClass] = {
    **{
        name: KnownClass(
            "becomes",
            "",
            {**dict.fromkeys((each.name for each in fields(known)), _in_the_filter), **_UNNEEDED},
        )
        for name, known in _ALIKE.items()
    },
    **later(
        "this version has no codecs for what travels",
        "ModelQuantizer",
        "ModelDequantizer",
    ),
    **not_needed(
        "tensors travel in their own dtype",
        "NumpyToPTParamsConverter",
        "PTToNumpyParamsConverter",
        "ParamsConverterFilter",
    ),
    **no_counterpart(
        "nothing is encrypted between processes of one machine",
        "HEModelEncryptor",
        "HEModelDecryptor",
        "HEModelSerializeFilter",
    ),
}
"""Filters by the name of their class."""
