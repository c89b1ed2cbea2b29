"""NVFlare's controllers: the workflow that each becomes, and what its arguments become."""

from __future__ import annotations

from collections.abc import Mapping

from flstream.recipe.nvflare.arguments import (
    SERVER_OPTIMIZER,
    default_rounds,
    exclude,
    min_clients,
    num_clients,
    order,
    patience,
    site_list,
    site_weights,
    timeout,
    wait_after_min,
)
from flstream.recipe.nvflare.models import model
from flstream.recipe.nvflare.rules import (
    ONE_OF_EACH,
    Complete,
    KnownClass,
    Rule,
    in_workflow,
    lost,
    nothing_more,
    only,
    to,
    unneeded,
)

_TASK_NAME = unneeded("tasks need no names")
_NOTHING_ASKED = unneeded("nothing is asked for at intervals")
_EVERY_MODEL = unneeded("every round's model is a file of the run directory")
_FAILURES = unneeded("clients.min_updates says how many sites may fail")
_WORKS = unneeded("a site is there from the beginning, and seen at once if it ends")
_SITES = in_workflow()

_COMMON: Mapping[str, Rule] = {
    "num_rounds": to("rounds"),
    "start_round": only(0, "rounds are counted from 0", "rounds are counted from 0"),
    "persistor_id": ONE_OF_EACH,
    "shareable_generator_id": ONE_OF_EACH,
    "aggregator_id": ONE_OF_EACH,
    "task_name": _TASK_NAME,
    "train_task_name": _TASK_NAME,
    "task_check_period": _NOTHING_ASKED,
    "persist_every_n_rounds": _EVERY_MODEL,
    "snapshot_every_n_rounds": _EVERY_MODEL,
    "allow_empty_global_weights": lost("a job has an initial model"),
    "ignore_result_error": _FAILURES,
    "task_assignment_timeout": _WORKS,
    "memory_gc_rounds": unneeded("the server holds no model"),
}

_FEDAVG: Mapping[str, Rule] = {
    **_COMMON,
    "min_clients": min_clients,
    "num_clients": num_clients,
    "wait_time_after_min_received": wait_after_min,
    "train_timeout": timeout,
    "model": model,
    "initial_model": model,
    "save_filename": unneeded("the last model is global.safetensors"),
    "aggregator": lost("aggregation.method has rules of its own, and takes a class of yours"),
    "stop_cond": to("stop_when"),
    "patience": patience,
    "exclude_vars": exclude,
    "aggregation_weights": site_weights,
    "stream_to_disk": unneeded("updates lie where they were trained until they are folded"),
    "enable_tensor_disk_offload": unneeded("updates are folded range by range"),
}

_CYCLIC: Mapping[str, Rule] = {
    **_COMMON,
    "num_clients": num_clients,
    "order": order,
    "cyclic_order": order,
    "allow_early_termination": lost("a workflow of your own may end when it likes"),
    "start_task_timeout": _WORKS,
    "progress_timeout": _WORKS,
}

# Of controllers whose work is done by the sites among themselves.
_CLIENT_CONTROLLED: Mapping[str, Rule] = {
    **_COMMON,
    "task_name_prefix": _TASK_NAME,
    "configure_task_timeout": _WORKS,
    "end_workflow_timeout": _WORKS,
    "job_status_check_interval": _NOTHING_ASKED,
    "max_status_report_interval": _WORKS,
    "private_p2p": unneeded("sites on one machine need no relay"),
}

_SWARM: Mapping[str, Rule] = {
    **_CLIENT_CONTROLLED,
    "start_task_timeout": _SITES,
    "progress_timeout": _SITES,
    "aggr_clients": site_list(
        "aggregators",
        "all sites may fold unless workflow.args.aggregators is set",
        words=("@all", "@ALL"),
    ),
    "starting_client": unneeded("the seed draws who folds, in the first round, too"),
    "result_clients": unneeded("every round's model is a file of the run directory"),
    "participating_clients": lost("clients.names lists the sites, all of which take part"),
    "train_clients": lost("all sites of a round train"),
}

_CROSS_SITE: Mapping[str, Rule] = {
    **_CLIENT_CONTROLLED,
    "eval_task_timeout": _SITES,
    "validation_timeout": in_workflow("eval_task_timeout"),
    "submit_model_timeout": _SITES,
    "participating_clients": site_list("participating_sites", "all sites take part"),
    "start_task_timeout": _WORKS,
    "progress_timeout": _WORKS,
    **dict.fromkeys(
        ("evaluators", "evaluatees"), lost("all sites that take part score all models")
    ),
    "global_model_client": unneeded("the server has the global models"),
    "model_locator_id": ONE_OF_EACH,
    "formatter_id": ONE_OF_EACH,
    "submit_model_task_name": _TASK_NAME,
    "validation_task_name": _TASK_NAME,
    "cross_val_dir": unneeded("results are in the run directory"),
    "eval_result_dir": unneeded("results are in the run directory"),
    "cleanup_models": unneeded("checkpoints.keep says which models are kept"),
    "wait_for_clients_timeout": _WORKS,
}


def _controller(
    workflow: str, args: Mapping[str, Rule], complete: Complete = nothing_more
) -> KnownClass:
    return KnownClass("becomes", f"workflow.type = {workflow}", args, complete, workflow=workflow)


CONTROLLERS: Mapping[str, KnownClass] = {
    **dict.fromkeys(
        (
            "ScatterAndGather",
            "FedAvg",
            "PTFedAvg",
            "FedAvgEarlyStopping",
            "PTFedAvgEarlyStopping",
        ),
        _controller("fedavg", _FEDAVG, default_rounds),
    ),
    "FedOpt": _controller("fedavg", {**_FEDAVG, **SERVER_OPTIMIZER}, default_rounds),
    **dict.fromkeys(
        ("CyclicController", "Cyclic", "CyclicServerController"),
        _controller("cyclic", {**_CLIENT_CONTROLLED, **_CYCLIC}, default_rounds),
    ),
    **dict.fromkeys(
        ("ScatterAndGatherScaffold", "Scaffold", "PTScaffold"),
        _controller("scaffold", _FEDAVG, default_rounds),
    ),
    "SwarmServerController": _controller("swarm", _SWARM),
    **dict.fromkeys(
        ("CrossSiteEvalServerController", "CrossSiteModelEval", "CrossSiteEval"),
        _controller("cross_site", _CROSS_SITE),
    ),
    "GlobalModelEval": _controller("evaluate", _CROSS_SITE),
}
"""Controllers by the name of their class."""
