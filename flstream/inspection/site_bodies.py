"""What one site of a run received and sent: its bodies, and the keys of their tensors."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from flstream.errors import CheckpointError, SimulationError, UsageError
from flstream.inspection.examine import model_at
from flstream.inspection.overview import matches
from flstream.model.formats.opening import open_checkpoint
from flstream.model.layout import Layout
from flstream.runs.body_records import (
    RECORDED,
    BodyRecord,
    TensorKey,
    metric_keys,
    read_bodies,
    tensor_keys,
)
from flstream.runs.history import History
from flstream.runs.journal import read_events, read_history
from flstream.runs.run_directory import RunDirectory
from flstream.runs.site_scores import by_site
from flstream.telemetry.events import Metrics, SiteUpdate, default_site_names

if TYPE_CHECKING:
    from flstream.codecs.lossy import LossyCodec


class SiteRequest(NamedTuple):
    """What to tell of a site.

    Attributes:
        path: Path of a run directory.
        site: Name of the site.
        round: Round whose tensors to list; None for the bodies of all rounds alone.
        filters: Shell patterns of the tensors to list; empty for all.
    """

    path: Path
    site: str
    round: int | None = None
    filters: Sequence[str] = ()


class KeyedBody(NamedTuple):
    """A body with the keys of its tensors."""

    body: BodyRecord
    keys: Sequence[TensorKey]


class SiteBodies(NamedTuple):
    """What a site received and sent.

    Attributes:
        path: Path of the run directory.
        site: Name of the site.
        round: Round that was asked for; None for all of them.
        bodies: The bodies of these rounds, in the order of the journal.
        keyed: The same with the keys of their tensors, where a round was asked for.
        metrics: Keys of the metrics that the site reported in it.
    """

    path: Path
    site: str
    round: int | None
    bodies: Sequence[BodyRecord]
    keyed: Sequence[KeyedBody] = ()
    metrics: Sequence[TensorKey] = ()

    def document(self) -> dict[str, Any]:
        """Convert the record to JSON."""
        bodies = [each.document() for each in self.bodies]
        for document, (_, keys) in zip(bodies, self.keyed, strict=False):
            document["keys"] = [key._asdict() for key in keys]
        return {
            "path": str(self.path),
            "site": self.site,
            "round": self.round,
            "bodies": bodies,
            "metrics": [key._asdict() for key in self.metrics],
        }


def examine_site(request: SiteRequest) -> SiteBodies:
    """Find what a site received and sent.

    Raises:
        UsageError: There is no such site, or nothing is on record of it in that round.
        CheckpointError: The journal, the job file or the checkpoints cannot be read.
    """
    path, site, number, _ = request
    run = RunDirectory(path)
    if not os.path.isfile(run.events):
        raise UsageError(f"{path} has no journal, events.jsonl; --site needs a run directory")
    try:
        history = read_history(
            run.events,
            skip_unknown=True,
            keep_results=False,
            keep_weights=False,
            note_lines_of=(*RECORDED, SiteUpdate),
        )
        sites = history.facts.names or default_site_names(history.facts.clients)
        if site not in sites:
            raise UsageError(f"{path} has no site {site!r}; {_named(sites)}")
        bodies = list(read_bodies(run.events, history, site))
        reported = _reported(run, history, site, number)
    except (SimulationError, OSError) as error:
        raise CheckpointError(str(error)) from error
    if number is not None:
        bodies = [each for each in bodies if each.round == number]
    if not bodies:
        when = "" if number is None else f" in round {number}"
        raise UsageError(
            f"{run.events} says nothing of what {site} received or sent{when}: it had no part, or "
            "an earlier version of flstream wrote the journal"
        )
    found = SiteBodies(path, site, number, bodies)
    if number is None:
        return found
    layout = open_checkpoint(model_at(path)).layout
    keyed = _keyed(bodies, layout, run, request.filters)
    metrics = metric_keys(site, number, "train", reported)
    if any(each.task == "evaluate" for each in bodies):
        columns = history.totals.site_scores.get(number, {})
        metrics += metric_keys(site, number, "evaluate", by_site(sites, columns).get(site, {}))
    return found._replace(keyed=keyed, metrics=metrics)


def _keyed(
    bodies: Sequence[BodyRecord], layout: Layout, run: RunDirectory, filters: Sequence[str]
) -> list[KeyedBody]:
    # With the job file's libraries, which most examinations do without.
    from flstream.inspection.site_bodies import lossy_codec_of

    ways: dict[str, Literal["down", "up"]] = {"received": "down", "sent": "up"}
    codecs = {
        direction: lossy_codec_of(run, ways[direction])
        for direction in {body.direction for body in bodies}
    }
    keyed = []
    for body in bodies:
        found = tensor_keys(body, layout, codecs[body.direction])
        keys = [key for key in found if matches(key.tensor, filters)]
        keyed.append(KeyedBody(body, keys))
    return keyed


def _reported(run: RunDirectory, history: History, site: str, number: int | None) -> Metrics:
    """The metrics of a site's training in a round."""
    found: Mapping[str, float | None] = {}
    sites = history.line_sites
    lines = [each for each in history.lines if site in sites[each]] if number is not None else []
    for event in read_events(run.events, lines):
        if isinstance(event, SiteUpdate) and event.round == number:
            found = event.metrics
    return found


def _named(sites: Sequence[str]) -> str:
    most = 6
    more = f" and {len(sites) - most} more" if len(sites) > most else ""
    return f"it has {', '.join(sites[:most])}{more}"


_CODECS = "streaming.codecs.{}"
_LOSSLESS = "streaming.codecs.require_lossless"


def lossy_codec_of(run: RunDirectory, way: Literal["down", "up"]) -> LossyCodec | None:
    """Return the codec with a loss of a run's models (``down``) or updates; None for none.

    Raises:
        CheckpointError: The job file cannot be read, or the code of the user's own codec.
    """
    if not run.job_file.exists():
        return None
    # Which take longer to import than a checkpoint takes to be shown.
    from flstream.codecs.chain import chain_of
    from flstream.job import JobError, parse_value
    from flstream.job.codecs import CodecPlan
    from flstream.job.hocon import read_hocon
    from flstream.job.keys import flat

    hocon = read_hocon(run.job_file)
    if hocon.problems:
        raise CheckpointError(str(JobError(run.job_file, hocon.problems)))
    written = dict(flat(hocon.values))
    try:
        names = (_CODECS.format(way), _LOSSLESS)
        codecs, lossless = (parse_value(each, written.get(each, []), run.path) for each in names)
        specs = [codec.spec for codec in codecs]
        return chain_of(CodecPlan(specs, lossless, way == "down")).lossy
    except Exception as error:  # of the user's code, which may be gone
        raise CheckpointError(
            f"the codecs that {run.job_file} names cannot be made: {error}; put their "
            "file back, since which tensors they encode is for them to say"
        ) from error
