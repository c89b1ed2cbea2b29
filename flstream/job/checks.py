"""Contradictions between keys of a job whose single values are sound."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from flstream.job.aggregation_section import METHODS
from flstream.job.clients_section import site_problems
from flstream.job.conditions import read_condition
from flstream.job.keys import WORKFLOW
from flstream.job.problems import MISSING, Problem, given_clause
from flstream.job.sections import EPSILON, RUN

if TYPE_CHECKING:
    from flstream.job.job import Job
    from flstream.job.stage import Stage
    from flstream.job.train_section import EvaluateSection, TrainSection


def contradictions(job: Job) -> Iterator[Problem]:
    """Yield a problem for each contradiction between keys of a job.

    Their `given` is empty for what the job file gives for the key.
    """
    names = job.clients.names
    if names is not None and job.clients.count != len(names):
        # The site names would not be those of the job.
        allowed = f"the number of clients.names, which is {len(names)}"
        yield Problem("clients.count", "", allowed, "leave it out")
        return
    yield from _sites(job)
    for rules in (_clients, _aggregation, _privacy, _places, _clock):
        yield from rules(job)
    yield from _workflows(job)


def stage_with_key_metric(stages: Sequence[Stage]) -> Stage:
    """Return the stage whose arguments name the key metric of the run."""
    return next((stage for stage in stages if stage.has_rounds), stages[0])


def workflow_name(index: int, count: int) -> str:
    """Return the name of a workflow's section, with which its keys begin.

    Args:
        index: Position of the workflow, from 0.
        count: Number of workflows of the job.
    """
    return f"{WORKFLOW}[{index}]" if count > 1 else WORKFLOW


def _sites(job: Job) -> Iterator[Problem]:
    devices, sites = job.devices, job.clients.site_names
    traces = {} if job.network.traces is None else {"network.traces": job.network.traces}
    files = traces | {f"devices.{key}": file for key, file in devices.files.items()}
    for key, named in (
        ("clients.args", job.clients.args),
        ("network.sites", job.network.sites),
        ("aggregation.weights", job.aggregation.weights),
        *((key, file.sites) for key, file in files.items()),
    ):
        for problem in site_problems(key, named, sites):
            if key in files:
                problem = replace(problem, state=f"{files[key].path}: {problem.state}")
            yield problem
    fleet = devices.file
    if fleet is not None and fleet.sites and not devices.named:
        allowed = "a row for each site, or sections of devices that the others draw"
        for site in islice((site for site in sites if site not in fleet.sites), 1):
            yield Problem("devices.file", f"{fleet.path} has no row of {site}", allowed)


def _clock(job: Job) -> Iterator[Problem]:
    """Yield the rules of simulated time."""
    if not job.time.is_virtual:
        if job.devices.is_on:
            allowed = "left out where time.clock is wall, which takes the time that sites take"
            yield Problem("devices", "", allowed, "set time.clock = virtual")
        return
    network = job.network
    links = {"network": network} | {
        f"network.sites.{site}": network.sites[site] for site in network.sites
    }
    allowed = "null where time.clock is virtual, which adds links up and emulates no packets"
    for section, link in links.items():
        for key in ("jitter", "loss"):
            if getattr(link, key) is not None:
                yield Problem(f"{section}.{key}", "", allowed)
    if network.traces is not None:
        allowed = "null where time.clock is virtual, on which the rates of a link do not change"
        yield Problem("network.traces", "", allowed)


def _clients(job: Job) -> Iterator[Problem]:
    clients, train = job.clients, job.train
    cohort = clients.cohort_size
    is_large = isinstance(clients.per_round, int) and clients.per_round > clients.count
    if is_large:
        yield Problem("clients.per_round", "", f"at most clients.count, which is {clients.count}")
    if not is_large and job.sample_size > clients.count:
        allowed = f"at most {clients.count - cohort}, as of clients.count no more are left"
        yield Problem("stragglers.extra", "", allowed, "set clients.per_round to fewer")
    if not is_large and clients.min_updates is not None and clients.min_updates > cohort:
        yield Problem(
            "clients.min_updates", "", f"at most the clients of a round, which are {cohort}"
        )
    yield from _sampler(job)
    if job.tracking.type is not None and RUN in (clients.names or ()):
        yield Problem(
            "clients.names",
            "",
            f"other names than {RUN}, which stands for the whole run in a tracker",
        )
    yield from _code("train", train)
    yield from _code("evaluate", job.evaluate)
    allowed = "given where evaluate.at is server, or evaluate.learner instead"
    if job.is_scored_centrally and job.evaluate.script is None and job.evaluate.learner is None:
        yield Problem("evaluate.script", MISSING, allowed)
    learns = train.learner is not None
    starts = train.command is not None
    allowed = "null beside train.learner, as a command starts a script"
    if starts and learns:
        yield Problem("train.command", "", allowed)
    hint = f"set clients.parallel = {clients.count}, or take fewer clients"
    if starts and not learns and clients.share_workers:
        yield Problem("train.command", "", "null where clients share processes", hint)


def _sampler(job: Job) -> Iterator[Problem]:
    clients, sampler, key = job.clients, job.clients.sampler, "clients.sampler.args"
    cohort, count = clients.cohort_size, clients.count
    # Arguments of a class of one's own may have these names, too.
    of_choice, of_oort = sampler.type == "power_of_choice", sampler.type == "oort"
    candidates = getattr(sampler.args, "candidates", None) if of_choice else None
    if candidates is not None and not cohort <= candidates <= count:
        allowed = f"from {cohort}, the clients of a round, to {count}, which is clients.count"
        yield Problem(f"{key}.candidates", "", allowed)
    duration = getattr(sampler.args, "preferred_duration", None) if of_oort else None
    if duration is not None and not job.time.is_virtual:
        allowed = "null, unless time.clock is virtual: no other clock has durations of tasks"
        yield Problem(f"{key}.preferred_duration", "", allowed)


def _code(section: str, code: TrainSection | EvaluateSection) -> Iterator[Problem]:
    """Yield a section's problems where it names a learner beside a script, or gives it a text."""
    learner, script = f"{section}.learner", f"{section}.script"
    if code.learner is not None and code.script is not None:
        allowed = f"the only one of {script} and {learner}"
        yield Problem(learner, "", allowed, f"take the learner with {script} = null")
    elif code.learner is not None and isinstance(code.args, str):
        yield Problem(f"{section}.args", "", "a section of keys and plain values, for a learner")


def _workflows(job: Job) -> Iterator[Problem]:
    early = [key for key in ("stop_when", "patience") if getattr(job, key) is not None]
    if job.stop_when and job.privacy.is_on and read_condition(job.stop_when).metric == EPSILON:
        early.remove("stop_when")  # what is spent is known of each round, evaluated or not
    first = stage_with_key_metric(job.stages)
    named = workflow_name(job.stages.index(first), len(job.stages))
    for index, stage in enumerate(job.stages):
        section = workflow_name(index, len(job.stages))
        for problem in stage.args.check_clients(job.clients):
            yield problem.below(f"{section}.args")
        for key in ("key_metric", "key_metric_mode") if stage.has_rounds else ():
            if getattr(stage.args, key) != (expected := getattr(first.args, key)):
                hint = "the best round is that of all workflows"
                yield Problem(f"{section}.args.{key}", "", f"{expected}, as in {named}", hint)
        is_unjudged = stage.has_rounds and stage.args.evaluate_every == 0
        is_asked = stage.args.evaluate == "task" or job.is_scored_centrally
        if is_unjudged and is_asked:
            allowed = f"null where {section}.args.evaluate_every is 0, as no round is evaluated"
            yield from (Problem(key, "", allowed) for key in early)
            early = []


def _aggregation(job: Job) -> Iterator[Problem]:
    section = job.aggregation
    method, cohort = section.type, job.clients.cohort_size
    built_in = METHODS.get(method)
    if built_in is None:
        return
    allowed = f"left out where aggregation.method is {method}, which counts all alike"
    if section.weights and not built_in.is_weighted:
        yield Problem("aggregation.weights", "", allowed)
    allowed = f"a number above 0, or median, as aggregation.method is {method}"
    if method == "norm_bounded_mean" and section.clip_norm is None:
        yield Problem("aggregation.clip_norm", MISSING, allowed)
    if built_in.needed:
        # A cohort may only become smaller in a round.
        args = dict(section.args)
        byzantine, most = args["byzantine"] or 0, built_in.most_byzantine(cohort)
        needed = built_in.least_updates(byzantine)
        hint = f"a round has {cohort} updates at most: clients.count, clients.per_round"
        allowed = f"a method for fewer than {needed} updates, such as median"
        if most < 0:
            yield Problem("aggregation.method", "", allowed, hint)
        allowed = f"at most {most}, since {method} needs {needed} updates for that many"
        if byzantine > most >= 0:
            yield Problem("aggregation.args.byzantine", "", allowed, hint)
        if (args.get("selected") or 0) > cohort:
            yield Problem("aggregation.args.selected", "", f"at most {cohort}", hint)


def _privacy(job: Job) -> Iterator[Problem]:
    privacy, clients, section = job.privacy, job.clients, job.aggregation
    allowed = "poisson with privacy.accountant = pld, which knows no other"
    if privacy.sampling == "without_replacement" and privacy.accountant == "pld":
        yield Problem("privacy.sampling", "", allowed)
    if not privacy.is_on:
        return
    central = "where privacy.type is central"
    cohort, most = privacy.cohort(clients), 2 * privacy.count_stddev(clients)
    if cohort > (population := privacy.drawn_from(clients)):
        allowed = f"at least the cohort, which is {cohort}"
        yield Problem("privacy.population", given_clause(population), allowed)
    allowed = f"below twice privacy.clipping.count_stddev, which is {most:g} for {cohort} sites"
    hint = "raise that, too, for a count with more noise"
    if privacy.clipping.type == "adaptive" and privacy.noise_multiplier >= most:
        yield Problem("privacy.noise_multiplier", "", allowed, hint)
    allowed = f"mean {central}, which bounds what a site can do to a mean"
    if section.type != "mean":
        yield Problem("aggregation.method", "", allowed)
    allowed = f"uniform {central}, which draws sites by itself (privacy.sampling)"
    if not clients.sampler.is_uniform:
        yield Problem("clients.sampler.type", "", allowed)
    allowed = f"left out {central}, which counts all sites alike"
    if section.weights:
        yield Problem("aggregation.weights", "", allowed)
    allowed = f"null {central}, which has privacy.clipping.norm"
    if section.clip_norm is not None:
        yield Problem("aggregation.clip_norm", "", allowed)
    condition = read_condition(job.stop_when) if job.stop_when else None
    if condition and condition.metric == EPSILON and condition.operator in ("<", "<="):
        yield Problem("stop_when", "", f"{EPSILON} > a number, since {EPSILON} only grows")


def _places(job: Job) -> Iterator[Problem]:
    """Yield the rules of links, machines and their devices."""
    clients, engine, maps = job.clients, job.engine, job.streaming.maps
    mapped = "where streaming.mode is map, since no network carries descriptors"
    hint = "set streaming.mode = pull"
    if maps and job.paces_links:
        yield Problem("network", "", f"left out {mapped}", hint)
    if maps and not engine.is_local:
        yield Problem("engine.type", "", f"local {mapped}", hint)
    if maps and job.streaming.direct == "off":
        yield Problem("streaming.direct", "", "auto where streaming.mode is map", hint)
    for key, value in (
        ("train.command", job.train.command),
        ("clients.gpus", clients.gpus),
        ("engine.gpus", engine.gpus),
    ):
        allowed = f"other than inline where {key} is given, since inline has one process"
        if engine.is_inline and value is not None:
            yield Problem("engine.type", "", allowed, f"leave {key} out, or take local")
    if engine.gpus is not None and clients.gpus is not None:
        yield Problem("engine.gpus", "", "null where clients.gpus lists them")
    if engine.address is not None and engine.type != "ray":
        yield Problem("engine.address", "", "null, unless engine.type is ray")
    if job.memory_limit is not None and engine.type == "ray":
        hint = "limit the nodes themselves, or take engine.type = local"
        yield Problem("memory_limit", "", "null where engine.type is ray, which has nodes", hint)
    if engine.pdb and not engine.is_inline:
        yield Problem(
            "engine.pdb", "", "false, unless engine.type is inline", "add --engine inline"
        )
