"""NVFlare's classes and their arguments: the key of a job file that each becomes, or why none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Key(NamedTuple):
    """Dotted key that an argument becomes, by a converter of `flstream.recipe.nvflare` if named.

    A key that begins with ``stage.`` is an argument of the workflow that the class becomes.
    """

    name: str
    converter: str = ""


class NotTaken(NamedTuple):
    """Reason why something is not taken, and whether it has no effect that a user may miss."""

    reason: str
    unneeded: bool = False


class Known(NamedTuple):
    """A class that becomes keys of a job file.

    Attributes:
        becomes: Words for the keys.
        workflow: Type of the workflow that a controller becomes.
        arguments: Arguments that are not those of other classes.
        defaults: Values of keys that nothing else has set.
        filter: Type of the filter that it becomes.
    """

    becomes: str
    workflow: str = ""
    arguments: Mapping[str, Key | NotTaken] = {}
    defaults: Mapping[str, Any] = {}
    filter: str = ""


def _unneeded(reasons: Mapping[str, str]) -> dict[str, NotTaken]:
    return {n: NotTaken(reason, True) for reason, names in reasons.items() for n in names.split()}


def _lost(reasons: Mapping[str, str]) -> dict[str, NotTaken]:
    return {n: NotTaken(reason) for reason, names in reasons.items() for n in names.split()}


UNKNOWN = NotTaken("it is not known here")

_UPDATES, _WAIT = Key("clients.min_updates", "sites"), Key("clients.wait_after_min", "wait")
_TIMEOUT, _MODEL = Key("clients.round_timeout", "timeout"), Key("model", "model")
_CHECKPOINT, _ORDER = Key("model.initial", "checkpoint"), Key("stage.order", "lower")

ARGUMENTS: Mapping[str, Key | NotTaken] = {
    "num_rounds": Key("rounds"),
    "min_clients": _UPDATES,
    "min_responses_required": _UPDATES,
    "num_clients": Key("clients.per_round", "sites"),
    "wait_time_after_min_received": _WAIT,
    "wait_time_after_min_resps_received": _WAIT,
    "train_timeout": _TIMEOUT,
    "learn_task_timeout": _TIMEOUT,
    "stop_cond": Key("stop_when"),
    "patience": Key("patience"),
    "exclude_vars": Key("aggregation.exclude", "patterns"),
    "aggregation_weights": Key("aggregation.weights", "weights"),
    "model": _MODEL,
    "initial_model": _MODEL,
    "source_ckpt_file_full_name": _CHECKPOINT,
    "source_npy_file_full_name": _CHECKPOINT,
    "order": _ORDER,
    "cyclic_order": _ORDER,
    "key_metric": Key("workflow.args.key_metric"),
    "negate_key_metric": Key("workflow.args.key_metric_mode", "mode"),
    "optimizer_args": Key("server_optimizer", "sgd"),
    "task_script_path": Key("train", "script"),
    "command": Key("train", "command"),
    "script": Key("train", "command"),
    "params_exchange_format": Key("train.exchange_format", "arrays"),
    **_lost(
        {
            "server_optimizer.learning_rate is one number": "lr_scheduler_args",
            "aggregation.method has rules of its own, and takes a class of yours": "aggregator",
            "a job has an initial model": "allow_empty_global_weights",
            "a workflow of your own may end when it likes": "allow_early_termination",
            "all sites take part, and all of them train": "participating_clients train_clients",
            "all sites that take part score all models": "evaluators evaluatees",
            "a script may call torch.cuda.empty_cache() itself": "cuda_empty_cache",
            "nothing is run after a script": "clean_up_script",
            "a script is started by the run": "allow_reconnect attach_id attach_timeout",
            "experiment and run have the names of the job and of its run directory": "kw_args",
            "the store is mlflow/mlflow.db of the run directory": "tracking_uri artifact_location",
        }
    ),
    **_unneeded(
        {
            "it goes with the script": "task_script_args",
            "a job has one of each": "persistor_id shareable_generator_id aggregator_id "
            "source_model model_locator_id formatter_id metric_comparator_id filter_id",
            "a site does what it is asked to": "task_name train_task_name learn_task_name "
            "task_name_prefix submit_model_task_name validation_task_name evaluate_task_name "
            "training global_evaluation",
            "a site is there from the beginning, and seen at once if it ends": "launch_timeout "
            "task_check_period job_status_check_interval task_assignment_timeout workers "
            "configure_task_timeout end_workflow_timeout max_status_report_interval "
            "start_task_timeout progress_timeout wait_for_clients_timeout max_resends "
            "task_wait_timeout task_wait_time last_result_transfer_timeout read_interval "
            "external_pre_init_timeout external_execution_wait peer_read_timeout monitor_interval "
            "heartbeat_interval heartbeat_timeout result_pull_interval log_pull_interval "
            "result_poll_interval result_wait_timeout shutdown_timeout stop_grace_period "
            "submit_result_timeout ignore_result_error",
            "models and results are in the run directory": "persist_every_n_rounds result_clients "
            "snapshot_every_n_rounds save_filename global_model_file_name model_dir model_name "
            "best_global_model_file_name cross_val_dir eval_result_dir cleanup_models",
            "the server holds no model": "memory_gc_rounds stream_to_disk device "
            "enable_tensor_disk_offload global_model_client",
            "a site's process talks to the server itself": "pipe_id launcher_id private_p2p "
            "data_exchange_path config_file_name execution_mode launch_once",
            "tensors travel in full, and in their own dtype": "server_expected_format "
            "from_nvflare_converter_id to_nvflare_converter_id allow_numpy_conversion "
            "params_transfer_type expected_data_kind data_kinds replace load_weights_only",
            "metrics come with the update, and are weighted as it is": "train_with_evaluation "
            "validation_metric_name weigh_by_local_iter",
            "rounds are counted from 0": "start_round",
            "all that a script logs is tracked": "events tb_folder",
            "the seed draws who folds": "starting_client",
        }
    ),
}
"""Arguments of any class by name, in the order in which they are converted."""

_TRAINS = {"rounds": 5}
_SWARM: Mapping[str, Key | NotTaken] = {
    "start_task_timeout": Key("stage.start_task_timeout"),
    "progress_timeout": Key("stage.progress_timeout"),
    "aggr_clients": Key("stage.aggregators", "site_names"),
}
_CROSS_SITE: Mapping[str, Key | NotTaken] = {
    "eval_task_timeout": Key("stage.eval_task_timeout"),
    "validation_timeout": Key("stage.eval_task_timeout"),
    "submit_model_timeout": Key("stage.submit_model_timeout"),
    "participating_clients": Key("stage.participating_sites", "site_names"),
}
_WORKFLOWS = {
    "ScatterAndGather FedAvg PTFedAvg FedAvgEarlyStopping PTFedAvgEarlyStopping FedOpt": (
        Known("workflow.type = fedavg", "fedavg", defaults=_TRAINS)
    ),
    "CyclicController Cyclic CyclicServerController": (
        Known("workflow.type = cyclic", "cyclic", defaults=_TRAINS)
    ),
    "ScatterAndGatherScaffold Scaffold PTScaffold": (
        Known("workflow.type = scaffold", "scaffold", defaults=_TRAINS)
    ),
    "SwarmServerController": Known("workflow.type = swarm", "swarm", _SWARM),
    "CrossSiteEvalServerController CrossSiteModelEval CrossSiteEval": (
        Known("workflow.type = cross_site", "cross_site", _CROSS_SITE)
    ),
    "GlobalModelEval": Known("workflow.type = evaluate", "evaluate", _CROSS_SITE),
}
_ARRAYS = {"train.exchange_format": "numpy"}
_COMPONENTS = {
    "SwarmClientController": Known("the sites' part of the workflow swarm"),
    "PTClientAPILauncherExecutor PTFilePipeLauncherExecutor PTInProcessClientAPIExecutor "
    "SubprocessLauncher": Known("the section train"),
    "ClientAPIExecutor ClientAPILauncherExecutor FilePipeLauncherExecutor "
    "InProcessClientAPIExecutor": Known("the section train", defaults=_ARRAYS),
    "PTFileModelPersistor": Known("the section model"),
    # The numbers that NVFlare's persistor begins with where it is given none.
    "NPModelPersistor": Known(
        "the section model",
        defaults={**_ARRAYS, "model.initial": [[1, 2, 3], [4, 5, 6], [7, 8, 9]]},
    ),
    "InTimeAccumulateWeightedAggregator AccumulateWeightedAggregator": Known("aggregation"),
    "IntimeModelSelector IntimeModelSelectionHandler": Known(
        "the metric that decides which round is the best",
        arguments=_lost({"metrics are averaged without factors of sites": "aggregation_weights"}),
        defaults={"workflow.args.key_metric": "val_accuracy"},
    ),
    "PTFedOptModelShareableGenerator": Known("the section server_optimizer"),
    "TBAnalyticsReceiver": Known("tracking", defaults={"tracking.type": "tensorboard"}),
    "MLflowReceiver": Known("tracking", defaults={"tracking.type": "mlflow"}),
    "PercentilePrivacy": Known("a filter", filter="percentile_privacy"),
    "SVTPrivacy": Known("a filter", filter="svt_privacy"),
    "ExcludeVars": Known("a filter", filter="exclude_vars"),
}
CLASSES: Mapping[str, Known | NotTaken] = {
    **{n: known for names, known in (_WORKFLOWS | _COMPONENTS).items() for n in names.split()},
    **_lost(
        {
            "write a script (train.script), or a class with train and evaluate (train.learner)": (
                "ModelLearnerExecutor LearnerExecutor NPTrainer"
            ),
            "a script receives tensors or arrays, not the weights of a Keras model": (
                "TFClientAPILauncherExecutor TFInProcessClientAPIExecutor"
            ),
            "nothing is sent to Weights & Biases; report.html draws what is logged": "WandBReceiver",
            "streaming.codecs has codecs of its own": "ModelQuantizer ModelDequantizer",
            "nothing is encrypted between processes of one machine": (
                "HEModelEncryptor HEModelDecryptor HEModelSerializeFilter"
            ),
        }
    ),
    **_unneeded(
        {
            "models travel as tensors, in their own dtype": "FullModelShareableGenerator "
            "SimpleModelShareableGenerator TensorServerStreamer TensorClientStreamer "
            "DecomposerRegister NumpyToPTParamsConverter PTToNumpyParamsConverter "
            "ParamsConverterFilter",
            "a site's process talks to the server itself": "CellPipe FilePipe "
            "ExternalConfigurator ClientAPIConfigurator",
            "what a script logs is in events.jsonl, report.html and the tracker": "MetricRelay "
            "MetricHandler ConvertToFedEvent MetricsArtifactWriter JobLogStreamer JobLogReceiver "
            "LogReceiver JobStatsReporter",
            "a run finds its own models": "PTFileModelLocator NPModelLocator",
            "scores are in summary.json and in cross_site/": (
                "ValidationJsonGenerator CWEResultPrinter"
            ),
            "the workflow asks the sites itself": (
                "CyclicClientController CrossSiteEvalClientController"
            ),
        }
    ),
}
"""Classes by name: what each becomes, or why it is not taken."""

TOP: Mapping[str, NotTaken] = {
    "resource_spec": NotTaken("clients.parallel, clients.threads and clients.gpus are for all"),
    "mandatory_clients": NotTaken("clients.min_updates is a number, whoever they are"),
    **_unneeded(
        {
            "a job file has none": "format_version server client",
            "the job has it": "name deploy_map min_clients",
        }
    ),
}
"""Keys at the top of a configuration or of the meta file that are no lists of classes."""
