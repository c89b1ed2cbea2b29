"""NVFlare's classes and arguments, each with its key in a job file or a reason.

A row has names, a bar, and what they become. A reason after a dash says why they are not taken;
nothing after the bar, that none is needed. Rows go on in lines that are indented more.
"""

from __future__ import annotations

import re


def _by_name(rows: str) -> dict[str, str]:
    lines = re.split(r"\n(?=\S)", rows.strip())
    pairs = (" ".join(line.split()).partition("|") for line in lines)
    return {name: target.strip() for names, _, target in pairs for name in names.split()}


CLASSES = _by_name("""
ScatterAndGather FedAvg PTFedAvg FedAvgEarlyStopping PTFedAvgEarlyStopping FedOpt
    | workflow=fedavg rounds=5
CyclicController Cyclic CyclicServerController | workflow=cyclic rounds=5
ScatterAndGatherScaffold Scaffold PTScaffold | workflow=scaffold rounds=5
SwarmServerController | workflow=swarm
CrossSiteEvalServerController CrossSiteModelEval CrossSiteEval | workflow=cross_site
GlobalModelEval | workflow=evaluate
PTFileModelPersistor | its arguments
NPModelPersistor | train.exchange_format=numpy model:model=[[1,2,3],[4,5,6],[7,8,9]]
PTClientAPILauncherExecutor PTFilePipeLauncherExecutor PTInProcessClientAPIExecutor | its arguments
ClientAPIExecutor ClientAPILauncherExecutor FilePipeLauncherExecutor InProcessClientAPIExecutor
    | train.exchange_format=numpy
SubprocessLauncher InTimeAccumulateWeightedAggregator AccumulateWeightedAggregator
    PTFedOptModelShareableGenerator | its arguments
IntimeModelSelector IntimeModelSelectionHandler | metric.key_metric=val_accuracy
TBAnalyticsReceiver | tracking.type=tensorboard
MLflowReceiver | tracking.type=mlflow
SwarmClientController | its arguments
PercentilePrivacy | filter=percentile_privacy
SVTPrivacy | filter=svt_privacy
ExcludeVars | filter=exclude_vars
FullModelShareableGenerator SimpleModelShareableGenerator TensorServerStreamer
    TensorClientStreamer DecomposerRegister NumpyToPTParamsConverter PTToNumpyParamsConverter
    ParamsConverterFilter CellPipe FilePipe ExternalConfigurator ClientAPIConfigurator MetricRelay
    MetricHandler ConvertToFedEvent MetricsArtifactWriter JobLogStreamer JobLogReceiver LogReceiver
    JobStatsReporter PTFileModelLocator NPModelLocator ValidationJsonGenerator CWEResultPrinter
    CyclicClientController CrossSiteEvalClientController |
ModelLearnerExecutor LearnerExecutor NPTrainer
    | - write a script (train.script), or a class with train and evaluate (train.learner)
TFClientAPILauncherExecutor TFInProcessClientAPIExecutor
    | - a script receives tensors or arrays, not the weights of a Keras model
WandBReceiver | - nothing is sent to Weights & Biases; report.html draws what is logged
ModelQuantizer ModelDequantizer | - streaming.codecs has codecs of its own
HEModelEncryptor HEModelDecryptor HEModelSerializeFilter
    | - nothing is encrypted between processes of one machine
""")
"""Workflow or filter of each class, and values that its arguments may replace, in their order."""

ARGUMENTS = _by_name("""
num_rounds | rounds
min_clients min_responses_required | clients.min_updates
num_clients | clients.per_round
wait_time_after_min_received wait_time_after_min_resps_received | clients.wait_after_min:positive
train_timeout learn_task_timeout | clients.round_timeout:timeout
stop_cond | stop_when
patience | patience
exclude_vars | aggregation.exclude
aggregation_weights | aggregation.weights
model initial_model | model:model
source_ckpt_file_full_name source_npy_file_full_name | model.initial:checkpoint
order cyclic_order | stage.order:order
key_metric | metric.key_metric
negate_key_metric | metric.key_metric_mode:min
optimizer_args | server_optimizer
task_script_path | train.script:script
task_script_args | train.args:words
command script | train:command
params_exchange_format | train.exchange_format:arrays
server_expected_format | train.exchange_format:torch
swarm.start_task_timeout | stage.start_task_timeout
swarm.progress_timeout | stage.progress_timeout
swarm.aggr_clients | stage.aggregators:listed
cross_site.eval_task_timeout cross_site.validation_timeout | stage.eval_task_timeout
evaluate.eval_task_timeout evaluate.validation_timeout | stage.eval_task_timeout
cross_site.submit_model_timeout | stage.submit_model_timeout
cross_site.participating_clients evaluate.participating_clients | stage.participating_sites:listed
lr_scheduler_args | - server_optimizer.args.learning_rate is one number
aggregator | - aggregation.method has rules of its own, and takes a class of yours
allow_empty_global_weights | - a job has an initial model
allow_early_termination | - a workflow of your own may end when it likes
participating_clients train_clients | - all sites take part, and all of them train
evaluators evaluatees | - all sites that take part score all models
model_persistor model_locator | - a job's model is model, with its file as initial_ckpt
clean_up_script | - nothing is run after a script
allow_reconnect attach_id attach_timeout | - a script is started by the run
kw_args | - experiment and run have the names of the job and of its run directory
tracking_uri artifact_location | - the store is mlflow/mlflow.db of the run directory
resource_spec | - clients.parallel, clients.threads and clients.gpus are for all sites
mandatory_clients | - clients.min_updates is a number, whoever they are
format_version server client name deploy_map
    persistor_id shareable_generator_id aggregator_id source_model model_locator_id formatter_id
    metric_comparator_id filter_id pipe_id launcher_id data_exchange_path config_file_name
    task_name train_task_name learn_task_name task_name_prefix submit_model_task_name
    validation_task_name evaluate_task_name training global_evaluation start_round
    launch_timeout task_check_period job_status_check_interval task_assignment_timeout workers
    configure_task_timeout end_workflow_timeout max_status_report_interval start_task_timeout
    progress_timeout wait_for_clients_timeout max_resends task_wait_timeout task_wait_time
    last_result_transfer_timeout read_interval external_pre_init_timeout external_execution_wait
    peer_read_timeout monitor_interval heartbeat_interval heartbeat_timeout result_pull_interval
    log_pull_interval result_poll_interval result_wait_timeout shutdown_timeout stop_grace_period
    submit_result_timeout ignore_result_error persist_every_n_rounds snapshot_every_n_rounds
    result_clients save_filename global_model_file_name best_global_model_file_name model_dir
    model_name cross_val_dir eval_result_dir cleanup_models memory_gc_rounds stream_to_disk device
    enable_tensor_disk_offload global_model_client private_p2p execution_mode launch_once
    from_nvflare_converter_id to_nvflare_converter_id
    allow_numpy_conversion params_transfer_type expected_data_kind data_kinds replace
    load_weights_only train_with_evaluation validation_metric_name weigh_by_local_iter events
    tb_folder starting_client client_memory_gc_rounds server_memory_gc_rounds get_task_timeout
    best_model_filename tensor_streaming min_download_timeout np_min_download_timeout
    tensor_min_download_timeout submit_task_result_timeout download_complete_timeout log_config
    cuda_empty_cache aggregator_data_kind memory_gc_rounds decomposers log_streaming |
""")
"""Keys by arguments, of any class or of a workflow's, in the order of their conversion.

A key may have a converter after a colon; ``stage.`` is ``args`` of the class's own workflow.
"""
