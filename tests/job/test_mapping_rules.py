"""Models are mapped where descriptors go: on one machine, without links in between."""

from collections.abc import Callable
from pathlib import Path

import pytest

from flstream.job import JobError, load_job

Write = Callable[..., Path]
MAP = "streaming.mode=map"


def lines(path: Path, *overrides: str) -> list[str]:
    """Return the mistakes of a job file, a line each."""
    with pytest.raises(JobError) as caught:
        load_job(path, overrides)
    return [line.strip() for line in str(caught.value).splitlines()[1:]]


def test_on_one_machine_models_may_be_mapped(write: Write) -> None:
    assert load_job(write(), [MAP]).streaming.maps
    assert not load_job(write()).streaming.maps


def test_an_engine_of_other_machines_carries_no_descriptors(write: Write) -> None:
    overrides = [MAP, "engine.type=join", "engine.bind=127.0.0.1:0", "engine.key_file=key"]
    assert lines(write(), *overrides) == [
        'engine.type: given "join"; must be local where streaming.mode is map, since no network '
        "carries descriptors; set streaming.mode = pull"
    ]


def test_emulated_links_carry_no_descriptors(write: Write) -> None:
    assert lines(write(), MAP, "network.up=10 Mbit") == [
        "network: given; must be left out where streaming.mode is map, since no network carries "
        "descriptors; set streaming.mode = pull"
    ]
