"""Mistakes in a job file: each is found, named by its key, and answered with what may stand there.

A row is what is written after a correct job of eight clients, the key that is to be named, and
words of the answer.
"""

import importlib.util
import json
import pickle

import pytest
from pyparsing import ParserElement

from flstream.errors import UsageError
from flstream.job import JobError, job_schema, load_job
from flstream.workflows.registry import BUILT_IN

UNIFORM = "network.up { distribution = uniform, low = "
ADAPTIVE = "privacy { type = central, clipping.type = adaptive }"
PRIVATE = "clients.per_round = 4, privacy.type = central, "
BYZANTINE, SELECTED = "aggregation.args.byzantine", "aggregation.args.selected"
OORT = "clients.sampler { type = oort, args."
CHOICE = "clients.per_round = 4, clients.sampler { type = power_of_choice, args.candidates = "
FEDADAM = "server_optimizer { type = fedadam, args."
UP = "filters.up[0].args."
DRAWN = "{ distribution = lognormal, median = "
ORDER = "workflow { type = cyclic, args.order = [site-1, "
NEVER = "workflow.args { evaluate = task, evaluate_every = 0 }, "

ROWS = [
    # Names of keys.
    ("clients.cuont = 1", "clients.cuont", "did you mean clients.count?"),
    ("request_timeout = 1", "request_timeout", "did you mean streaming.streaming_per_request_t"),
    ("chunk_size = 1", "chunk_size", "did you mean streaming.tensor_download_chunk_size or"),
    ("client { count = 1 }", "client", "did you mean clients?"),
    ("workflow.key_metric = a", "workflow.key_metric", "did you mean workflow.args.key_metric?"),
    ("workflow.args.order = random", "workflow.args.order", "unknown key"),
    ("zebra = 1", "zebra", "unknown key"),
    ("network.jiter = 1 s", "network.jiter", "did you mean network.jitter?"),
    ("privacy.clipping.tpye = fixed", "privacy.clipping.tpye", "unknown key"),
    ('train.args { a b = 1 }', "train.args", 'key "a b"; must be letters, digits, _ and -'),
    # Numbers, sizes, durations and their bounds.
    ("rounds = true", "rounds", "given true; must be a whole number from 1 to 1000000000"),
    ("clients.round_timeout = 0 s", "clients.round_timeout", "above 0 and"),
    ("clients.per_round = 9", "clients.per_round", "at most clients.count, which is 8"),
    (
        "stragglers { policy = over_selection, extra = 4 }, clients.per_round = 6",
        "stragglers.extra",
        "at most 2, as of clients.count no more are left",
    ),
    ("clients.per_round = 0", "clients.per_round", "or a fraction above 0 and up to 1.0"),
    ("clients = 8", "clients", "must be a section { names, count, args,"),
    ("streaming.np_download_chunk_size = 4100", "streaming.np_download_chunk_size", "given 4100;"),
    ("streaming.mode = Pull", "streaming.mode", "did you mean pull?"),
    ("model.strict = 1", "model.strict", "given 1; must be true or false"),
    ("train.args { a = [1e999] }", "train.args.a", "given Infinity; must be a finite number"),
    ('stop_when = ">= 0.9"', "stop_when", "must be a metric, one of >= <= > < and a number"),
    ('stop_when = "accuracy => 0.97"', "stop_when", 'such as "accuracy >= 0.97"'),
    ('stop_when = "accuracy >= 97%"', "stop_when", "97% is no finite number"),
    ('stop_when = "loss < nan"', "stop_when", "nan is no finite number"),
    ("patience = 2.5", "patience", "a whole number of at least 1"),
    # Names.
    ("name = ../up", "name", "a letter or digit first"),
    ("name = größe", "name", "ö is none of the letters"),
    ("clients { count = null, names = [café] }", "clients.names", "é is none of the letters"),
    # The model and the training code.
    ("model.factory = null", "model.factory", "unless model.initial is given"),
    ("model.factory = model", "model.factory", "must be module:callable or path/to/file.py:call"),
    ("model.factory = modell:build", "model.factory", "an installed module modell; did you mean m"),
    ("model.factory = model:biuld", "model.factory", "did you mean build?"),
    ("model.initial = w.h5", "model.initial", "the path of an existing .safetensors, .pt, .pth, ."),
    ("model.initial = w.safetensors", "model.initial", "the path of an existing"),
    ("train.script = null", "train.script", "unless train.learner is given"),
    ('train.args = "--name \'a"', "train.args", "given"),
    ("train.preload = [3]", "train.preload", "a list of names of modules"),
    ("train.preload = [nosuch.part]", "train.preload", "no installed module nosuch"),
    ('train.command = ""', "train.command", "such as torchrun --nproc_per_node=2"),
    ('train.command = "torchrun \'a"', "train.command", "No closing quotation"),
    ("train.command = trochrun", "train.command", "there is no program trochrun in "),
    ("train.command = ./model.py", "train.command", "there is no program /"),
    ("train.command = python, clients.parallel = 2", "train.command", "null where clients share p"),
    ("train.command = python, clients.count = 40", "train.command", "set clients.parallel = 40"),
    # Sites.
    ("clients.names = [ward, ward]", "clients.names", "ward is in it twice"),
    ("clients.names = []", "clients.names", "such as [ward, clinic]"),
    ('clients.names = ["a/b"]', "clients.names", "'a/b' is no such name"),
    ('clients.names = [".."]', "clients.names", ".. is the name of a process of the run"),
    ("clients.names = [server]", "clients.names", "server is the name of a process"),
    ("clients.names = [worker-3]", "clients.names", "worker-3 is the name of a process"),
    ("clients.names = [a, b]", "clients.count", "the number of clients.names, which is 2"),
    ("clients.count = null", "clients.count", "unless clients.names is"),
    ("clients.args { sit-1 { x = 1 } }", "clients.args", "must be sites of the job, which are sit"),
    ("clients.args { site-2 = 3 }", "clients.args.site-2", "must be a section"),
    ("clients.args = none.csv", "clients.args", "none.csv cannot be read"),
    ('clients.gpus = ["0", "a b; c"]', "clients.gpus", "given"),
    (
        "clients { count = 1, names = [global] }, tracking.type = tensorboard",
        "clients.names",
        "other names than global",
    ),
    # Samplers.
    ("clients.sampler = orot", "clients.sampler.type", "did you mean oort?"),
    ("clients.sampler = random", "clients.sampler.type", "must be uniform, by_data_size, power_of"),
    ("clients.sampler = 3", "clients.sampler", "must be a section { type, args }"),
    (OORT + "alpha = -1 }", "clients.sampler.args.alpha", "a whole number from 0 to 20"),
    (OORT + "cutof = 0.5 }", "clients.sampler.args.cutof", "did you mean clients.sampler.args."),
    (OORT + "exploration = 0.1 }", "clients.sampler.args.exploration_min", "at most exploration, "),
    (OORT + "preferred_duration = fast }", "clients.sampler.args.preferred_duration", "above 0"),
    (OORT + "preferred_duration = 9 s }", "clients.sampler.args.preferred_duration", "null, unle"),
    (CHOICE + "0 }", "clients.sampler.args.candidates", "a whole number of at least 1"),
    (CHOICE + "2 }", "clients.sampler.args.candidates", "must be from 4, the clients of a round"),
    (CHOICE + "9 }", "clients.sampler.args.candidates", "to 8, which is clients.count"),
    (PRIVATE + "clients.sampler = oort", "clients.sampler.type", "uniform where privacy.type is c"),
    # How updates are combined.
    ("aggregation.method = Krum", "aggregation.method", "did you mean krum?"),
    ("aggregation.clip_norm = true", "aggregation.clip_norm", "a number above 0, or median"),
    ('aggregation.exclude = ["a", "(b"]', "aggregation.exclude", 'given "(b"'),
    ("aggregation.include = []", "aggregation.include", "at least 1"),
    ("aggregation.args.byzantine = 1", "aggregation.args.byzantine", "unknown key"),
    ("aggregation { method = krum, args.selected = 2 }", SELECTED, "unknown key"),
    ("aggregation { method = krum, args.byzantine = 3 }", BYZANTINE, "at most 2, since k"),
    ("aggregation { method = bulyan, args.byzantine = 2 }", BYZANTINE, "needs 11 updates"),
    ("aggregation { method = multi_krum, args.selected = 9 }", SELECTED, "at most 8"),
    ("aggregation.method = norm_bounded_mean", "aggregation.clip_norm", "missing; must be a numbe"),
    ("aggregation { method = krum, weights.site-1 = 2 }", "aggregation.weights", "left out where"),
    ("aggregation.method = krum, clients.per_round = 2", "aggregation.method", "fewer than 3 upda"),
    ("aggregation.weights { sit-1 = 2 }", "aggregation.weights", "did you mean site-1"),
    ("aggregation.weights { site-1 = 1e7 }", "aggregation.weights.site-1", "from 1e-06 to 1e+06"),
    ("server_optimizer.type = adam", "server_optimizer.type", "did you mean fedadam?"),
    ("workflow = median", "workflow.type", "it is aggregation.method = median"),
    ("aggregation = scaffold", "aggregation.method", "it is workflow.type = scaffold"),
    (FEDADAM + "mu = 1 }", "server_optimizer.args.mu", "unknown key"),
    # Filters.
    ("filters.up = [gausian]", "filters.up[0].type", 'given "gausian"; must be percentile_privacy'),
    ("filters.up = [gaussian]", "filters.up[0].args.sigma", "missing; must be a number above 0"),
    ("filters.up = [{ type = gaussian, args.sigma = 0 }]", UP + "sigma", "given 0; must be a numb"),
    ("filters.up = [{ type = svt_privacy, args.gama = 3 }]", UP + "gama", "did you mean gamma?"),
    ("filters.up = [{ args.percentile = 3 }]", "filters.up[0].type", "missing"),
    ("filters.up = [exclude_vars]", "filters.up[0].args.exclude_vars", "missing; must be a list "),
    ('filters.up = [{ type = exclude_vars, args.exclude_vars = "(" }]', UP + "exclude_vars", "("),
    # Links.
    ("network.up = 10 MB", "network.up", 'given "10 MB"; must be a rate'),
    ("network.loss = 100%", "network.loss", "a fraction from 0 to below 1, such as 0.01"),
    ("network.loss = nan", "network.loss", "a fraction from 0"),
    ("network.sites { site-1 { upp = 1 } }", "network.sites.site-1.upp", "did you mean"),
    ("network.sites { ward { up = 1 Mbit } }", "network.sites", "must be sites of the job"),
    ("network.sites { site-1 { loss = 2 } }", "network.sites.site-1.loss", "a fraction"),
    ("network.up { median = 1 Mbit }", "network.up", "{ distribution = lognormal, median"),
    ("network.up { distribution = normal }", "network.up", "{ distribution = uniform, low, high"),
    (UNIFORM + "1 Mbit }", "network.up.high", "missing"),
    (UNIFORM + "2 Mbit, high = 1 Mbit }", "network.up.high", "must be at least low"),
    (UNIFORM + "1 Mbit, high = 2 Mbit, sigma = 1 }", "network.up.sigma", "unknown key"),
    ("network.sites.ward.up " + DRAWN + "x, sigma = 1 }", "network.sites.ward.up.median", "a rate"),
    ("network.traces = lnks.csv", "network.traces", "the path of an existing .csv file"),
    ("streaming.mode = map, network.up = 10 Mbit", "network", "set streaming.mode = pull"),
    # Privacy.
    (PRIVATE + "aggregation.method = median", "aggregation.method", "must be mean where"),
    (PRIVATE + "aggregation.weights.site-1 = 2", "aggregation.weights", "given {"),
    (PRIVATE + "aggregation.clip_norm = 1", "aggregation.clip_norm", "must be null where"),
    (PRIVATE + "privacy.noise_cohort_size = 11", "privacy.population", "given 8; must be at least"),
    (PRIVATE + ADAPTIVE, "privacy.noise_multiplier", "below twice privacy.clipping.count_stddev"),
    ("privacy { accountant = pld, sampling = without_replacement }", "privacy.sampling", "poisson"),
    (PRIVATE + 'stop_when = "epsilon < 3"', "stop_when", "must be epsilon > a number"),
    (PRIVATE + NEVER + 'stop_when = "a > 0.9"', "stop_when", "null where workflow.args.evaluate_e"),
    (NEVER + 'stop_when = "epsilon > 3"', "stop_when", "null where workflow.args.evaluate_every i"),
    (NEVER + "patience = 2", "patience", "null where workflow.args.evaluate_every is 0"),
    # Machines and codecs.
    ("engine.type = rya", "engine.type", "did you mean ray?"),
    ("engine.type = inline, clients.gpus = [0]", "engine.type", "leave clients.gpus out, or take"),
    ("streaming.codecs.down = [topk]", "streaming.codecs.down[0]", "a codec of whole models"),
    (
        "streaming { send_model_deltas = true, codecs.up = [int8] }",
        "streaming.send_model_deltas",
        "put delta into codecs.up",
    ),
    ("streaming.codecs.up = [shuffle]", "streaming.codecs.up[0]", "followed by zstd"),
    ("streaming.codecs.up = [int7]", "streaming.codecs.up[0].type", "did you mean int8?"),
    ('streaming.codecs.require_lossless = ["("]', "streaming.codecs.require_lossless", "given"),
    ("clients.min_updates = 9", "clients.min_updates", "at most the clients of a round, which"),
    # Trackers.
    ("tracking.type = tensorbord", "tracking.type", "did you mean tensorboard?"),
    ("tracking.type = wandb", "tracking.type", "must be tensorboard, mlflow, path/to/file.py:Clas"),
    ("tracking { type = tensorboard, args.a = 1 }", "tracking.args.a", "unknown key"),
    ("tracking.args.a = 1", "tracking.args.a", "unknown key"),
    # Workflows.
    ("workflow = 3", "workflow", "must be a section { type, args }, or a list of such"),
    ("workflow = [{}, 3]", "workflow[1]", "must be a section { type, "),
    ("workflow.args = 3", "workflow.args", "must be a section { evaluate, "),
    ("workflow.type = cyclic, order = 1", "order", "did you mean workflow.args.order?"),
    ("workflow = [{ type = cyclic, args.ordr = 1 }]", "workflow.args.ordr", "workflow.args.order?"),
    ("workflow { type = cyclic, args.order = Random }", "workflow.args.order", "did you mean rand"),
    (ORDER + "site-1] }", "workflow.args.order", "site-1 is in it twice"),
    (ORDER + "site-9] }", "workflow.args.order", 'given "site-9"; must be a site of the job'),
    ("workflow { type = gossip, args.peers = 3 }", "workflow.type", ", ".join(BUILT_IN)),
    ("workflow.type = fedavgg", "workflow.type", "did you mean fedavg?"),
    ("workflow { type = swarm, args.aggregator = 3 }", "workflow.args.aggregator", "aggregators?"),
    ("workflow { type = ditto, args.mu = 1 }", "workflow.args.mu", "key_metric_mode, ditto_lambda"),
    ("workflow.type = fedper", "workflow.args.personal", "missing; must be a list of regular"),
    ('workflow { type = fedper, args.personal = ["("] }', "workflow.args.personal", "given"),
    (
        "workflow = [{ args.key_metric = loss }, { args.key_metric = a }]",
        "workflow[1].args.key_metric",
        'given "a"; must be loss, as in workflow[0]; the best round is that of all workflows',
    ),
    (
        "workflow = [{}, { args.key_metric_mode = min }]",
        "workflow[1].args.key_metric_mode",
        "must be max, as in workflow[0]",
    ),
    (
        "workflow = [{}, { args { evaluate = task, evaluate_every = 0 } }], patience = 3",
        "patience",
        "null where workflow[1].args.evaluate_every is 0",
    ),
    ("engine.address = a:1", "engine.address", "must be null, unless engine.type is ray"),
    ("engine.address = localhost", "engine.address", "HOST:PORT of a Ray cluster's head"),
    ("engine.address = localhost:99999", "engine.address", "65535 is the last port"),
    # HOCON.
    ('train.args.a = "x"\ntrain.args.a += "y"', "", "a += appends to a list, and a is none"),
    ('include "more.conf"', "include", 'more.conf"; must be an existing file'),
    ('include "part*.conf"', "include", "must be an existing file"),
    ('include "http://localhost:1/x.conf"', "include", "must be a file, not a URL"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "key", "words"), ROWS)
def test_a_mistake_is_named_by_its_key_with_what_may_stand_there(
    mistakes, folder, capfd, text, key, words
):
    (folder / "w.h5").touch()
    [problem] = mistakes(text)
    assert problem.key == key
    assert words in str(problem)
    assert "\n" not in str(problem)
    assert capfd.readouterr() == ("", "")


def test_models_are_mapped_on_one_machine_alone(mistakes, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    [problem] = mistakes("streaming.mode = map, engine.type = ray")
    assert problem.key == "engine.type"
    assert "set streaming.mode = pull" in str(problem)


def test_mistakes_are_all_named_in_one_message_and_survive_pickling(write, folder):
    path = write(
        """
        name = digits
        rounds = ten
        clients { cuont = 8 }
        model { factory = "model:build" }
        train { script = clinet.py }
        workflow = [{ typ = a }, { type = cyclic, args.ordr = 1 }]
        """,
        base="",
    )
    with pytest.raises(UsageError) as caught:
        load_job(path)
    error = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(error, JobError)
    assert str(error) == str(caught.value)
    head, rounds, count, script, *stages = str(error).splitlines()
    assert head == f"{path} has 5 mistakes:"
    assert rounds == '  rounds: given "ten"; must be a whole number from 1 to 1000000000'
    # A section with a misspelt key is not also said to lack the right one.
    assert count == "  clients.cuont: unknown key; did you mean clients.count?"
    assert script.endswith(f"there is no {folder}/clinet.py; did you mean client.py?")
    names = [line.partition(":")[0].strip() for line in stages]
    assert names == ["workflow[0].typ", "workflow[1].args.ordr"]


def test_the_schema_of_job_files_stands_alone_and_has_the_ranges_of_keys():
    schema = job_schema()
    assert "$ref" not in json.dumps(schema)
    threads = schema["properties"]["clients"]["properties"]["threads"]
    assert (threads["minimum"], threads["maximum"]) == (1, 1024)


def test_everything_an_empty_file_lacks_is_named(mistakes):
    due = ["name", "rounds", "clients.count", "model.factory", "train.script"]
    assert [problem.key for problem in mistakes(base="")] == due
    base = 'name = a, model.factory = "model:build", train.script = client.py'
    misspelt = mistakes("\nruonds = 1, client { count = 3 }", base=base)
    assert [problem.key for problem in misspelt] == ["ruonds", "client"]


def test_overrides_go_through_the_same_checks(mistakes):
    found = mistakes("", "clients.count=x", "foo", "seed=[1", "strem.window=1", "=3")
    keys = ["override", "seed", "override", "clients.count", "strem"]
    assert [problem.key for problem in found] == keys
    assert 'given "foo"; must be key=value, such as clients.count=4' in str(found[0])
    [problem] = mistakes("", "model.args={a = 1}, rounds = 5")
    assert str(problem).endswith("must be a HOCON value; it is more than one value")


YAML = "name: mini\nrounds: 2\nclients:\n  # of one ward\n  count: 2\n"
SYNTAX = "syntax error at or just before line"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("clients {", SYNTAX),
        ("seed = }", SYNTAX),
        ("seed = 1\nrounds\n", SYNTAX),
        ('a = "x\n', SYNTAX),
        ("x = [" + "1, " * 1000, SYNTAX),
        ('include "broken.conf"', "broken.conf"),
        ('include "job.conf"', "job.conf includes itself"),
        (YAML, "`clients:` is YAML; a job file is HOCON: clients { count = 2 }"),
        ("---\nsites:\n  - a\n  - b\n", "`sites:` is YAML"),
        ("a:\n- 1\n", "`a:` is YAML"),
        ("#" * (1 << 20) + "#", "has more than 1 MiB, which no job file has; check the path"),
        ("a " + "{ b " * 3000 + "}" * 3000, "its braces are nested too deeply"),
        ("[1, 2]", "the file holds a list; write key = value lines"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_short_sentence(mistakes, folder, text, words):
    (folder / "broken.conf").write_text("seed = }")
    before = ParserElement.DEFAULT_WHITE_CHARS
    [problem] = mistakes(text, base="")
    assert words in str(problem)
    assert "\n" not in str(problem)
    assert len(str(problem)) < 500
    assert before == ParserElement.DEFAULT_WHITE_CHARS


def test_a_missing_job_file_in_a_folder_that_may_not_be_listed_is_a_sentence(folder, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("os.listdir", refuse)
    with pytest.raises(JobError, match="no such job file; check the path"):
        load_job(folder / "no.conf")


def test_a_path_that_is_no_job_file_is_a_sentence(folder):
    (folder / "binary.conf").write_bytes(b"name = \xff")
    for name, words in [
        ("no.conf", "there is no such job file; did you mean binary.conf?"),
        ("none/here", "there is no such job file; check the path"),
        (".", "job.conf: there is no such job file; did you mean binary.conf?"),
        ("binary.conf", "is not UTF-8 text (byte 7)"),
    ]:
        with pytest.raises(JobError) as caught:
            load_job(folder / name)
        assert str(caught.value).endswith(words)
