"""NVFlare's executors: what each becomes, with the arguments of scripts."""

from __future__ import annotations

from collections.abc import Mapping

from flstream.recipe.nvflare.arguments import min_clients, timeout, wait_after_min
from flstream.recipe.nvflare.rules import (
    AS_SENT,
    ONE_OF_EACH,
    KnownClass,
    Rule,
    lost,
    no_counterpart,
    not_needed,
    only,
    unneeded,
)
from flstream.recipe.nvflare.scripts import (
    command,
    exchange_format,
    numpy_by_default,
    script_args,
    script_path,
)

_TASKS = unneeded("a site does what it is asked to")
_PIPES = unneeded("a site's process talks to the server itself")
_ALIVE = unneeded("a site that ends is seen at once, and clients.round_timeout bounds a task")
_IN_FULL = unneeded("updates travel in full, which is exact")

LAUNCH_ONCE = only(
    True,
    "a script is run once, if its site has a process of its own",
    "a script is run anew for each task only where sites share processes (clients.parallel)",
)
"""Rule of whether a script is started once, or for each task."""

_SCRIPTS: Mapping[str, Rule] = {
    "task_script_path": script_path,
    "task_script_args": script_args,
    "command": command,
    "execution_mode": lambda draft, argument: (
        argument.lost("a script is started by the run")
        if argument.value == "attach"
        else argument.not_needed("a site has a process of its own")
    ),
    "params_exchange_format": exchange_format,
    "server_expected_format": AS_SENT,
    "params_transfer_type": _IN_FULL,
    "train_with_evaluation": unneeded("metrics that come with an update score what was received"),
    "training": _TASKS,
    "global_evaluation": _TASKS,
    "train_task_name": _TASKS,
    "evaluate_task_name": _TASKS,
    "submit_model_task_name": _TASKS,
    "from_nvflare_converter_id": AS_SENT,
    "to_nvflare_converter_id": AS_SENT,
    "launch_once": LAUNCH_ONCE,
    **dict.fromkeys(("pipe_id", "launcher_id", "data_exchange_path", "config_file_name"), _PIPES),
    **dict.fromkeys(
        (
            "launch_timeout",
            "task_wait_timeout",
            "task_wait_time",
            "last_result_transfer_timeout",
            "external_pre_init_timeout",
            "external_execution_wait",
            "peer_read_timeout",
            "monitor_interval",
            "read_interval",
            "heartbeat_interval",
            "heartbeat_timeout",
            "result_pull_interval",
            "result_poll_interval",
            "result_wait_timeout",
            "log_pull_interval",
            "shutdown_timeout",
            "stop_grace_period",
            "submit_result_timeout",
            "max_resends",
            "workers",
        ),
        _ALIVE,
    ),
    "memory_gc_rounds": unneeded("a script's process ends with the run"),
    "cuda_empty_cache": lost("a script may call torch.cuda.empty_cache() itself"),
    "allow_reconnect": lost("a script is started by the run"),
    "attach_id": lost("a script is started by the run"),
    "attach_timeout": lost("a script is started by the run"),
}

_TORCH_SCRIPT = KnownClass("becomes", "the section train", _SCRIPTS)
_ARRAY_SCRIPT = KnownClass("becomes", "the section train", _SCRIPTS, numpy_by_default)

EXECUTORS: Mapping[str, KnownClass] = {
    **dict.fromkeys(
        (
            "PTClientAPILauncherExecutor",
            "PTFilePipeLauncherExecutor",
            "PTInProcessClientAPIExecutor",
        ),
        _TORCH_SCRIPT,
    ),
    **dict.fromkeys(
        (
            "ClientAPIExecutor",
            "ClientAPILauncherExecutor",
            "FilePipeLauncherExecutor",
            "InProcessClientAPIExecutor",
        ),
        _ARRAY_SCRIPT,
    ),
    "SwarmClientController": KnownClass(
        "becomes",
        "the sites' part of the workflow swarm",
        {
            "min_responses_required": min_clients,
            "wait_time_after_min_resps_received": wait_after_min,
            "learn_task_timeout": timeout,
            "learn_task_name": _TASKS,
            **dict.fromkeys(
                ("persistor_id", "aggregator_id", "shareable_generator_id", "metric_comparator_id"),
                ONE_OF_EACH,
            ),
        },
    ),
    **not_needed("the workflow cross_site asks the sites itself", "CrossSiteEvalClientController"),
    **not_needed("the workflow cyclic asks the sites itself", "CyclicClientController"),
    **no_counterpart(
        "a learner of NVFlare; write a script (train.script), or a class with train and evaluate "
        "(train.learner)",
        "ModelLearnerExecutor",
        "LearnerExecutor",
        "NPTrainer",
    ),
    **no_counterpart(
        "a script receives tensors or arrays, not the weights of a Keras model",
        "TFClientAPILauncherExecutor",
        "TFInProcessClientAPIExecutor",
    ),
}
"""Executors by the name of their class."""
