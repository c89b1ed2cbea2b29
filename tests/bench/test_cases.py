"""Cases of a bench: what options stand for, what a run needs, and what is refused."""

import re
from contextlib import suppress
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flstream.bench.cases import CODECS, make_plan, parse_link
from flstream.bench.model_like import add_update, build
from flstream.errors import UsageError
from flstream.job.network_section import LinkSection
from flstream.model.digests import body_digest

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
MB = 10**6


def make(size=GIB, clients=2, **options):
    return make_plan(size, clients=clients, **options)


def names(**options):
    return [case.name for case in make(**options).cases]


def jobs(**options):
    plan = make(**options)
    return {case.name: plan.job(case) for case in plan.cases}


def test_cases_are_all_combinations_named_by_what_differs():
    assert names() == ["pull", "native", "file"]
    assert names(modes="native,pull", chunk_sizes=[MIB, 2 * MIB]) == [
        "native", "pull 1 MiB", "pull 2 MiB"
    ]  # fmt: skip
    assert names(codecs=" int8 , zstd,none,int8") == ["none", "int8", "zstd"]
    assert names(codecs="all,topk:0.1") == ["none", *CODECS, "topk:0.1"]
    assert names(links=["10Mbit,50ms"]) == names()
    both = names(modes="pull,native", codecs="int8", links=["none", "1Mbit"])
    assert both[:2] + both[-1:] == [
        "pull none no link", "pull int8 no link", "native int8 1Mbit"
    ]  # fmt: skip


def test_a_case_is_a_job_with_its_settings():
    by_name = jobs(size=64 * MIB, clients=3, tensors=7, chunk_sizes=[64 * KIB, MIB])
    assert {job.clients.workers for job in by_name.values()} == {3}
    modes = {name: job.streaming.mode for name, job in by_name.items()}
    assert modes["native"] == "native"
    assert modes["file 1 MiB"] == modes["pull 1 MiB"] == "pull"
    assert by_name["pull 64 KiB"].streaming.tensor_download_chunk_size == 64 * KIB
    assert "file_client" in str(by_name["file 1 MiB"].train.script)
    assert dict(by_name["native"].model.args) == {"size": 64 * MIB, "tensors": 7}


def test_exact_codecs_work_both_ways_and_those_with_a_loss_on_updates():
    by_name = jobs(codecs="topk:0.1+shuffle+zstd,int8/cast,topk+zstd/none,int8:64,zstd:3")
    kinds = {
        name: [[spec.type for spec in way] for way in (job.codecs.up, job.codecs.down)]
        for name, job in ((name, job.streaming) for name, job in by_name.items())
    }
    assert kinds["none"] == [[], []]
    assert kinds["topk:0.1+shuffle+zstd"] == [["topk", "shuffle", "zstd"], ["shuffle", "zstd"]]
    assert kinds["int8/cast"] == [["int8"], ["cast"]]
    assert kinds["topk+zstd/none"] == [["topk", "zstd"], []]
    assert "64" in str(by_name["int8:64"].streaming.codecs.up[0].args)
    assert "3" in str(by_name["zstd:3"].streaming.codecs.down[0].args)


def test_a_link_comes_with_as_much_time_as_it_takes():
    (job,) = jobs(size=2500 * MB, modes="pull", links=["10Mbit/20Mbit,50ms,5ms,1%"]).values()
    link = job.network.link("site-2", job.seed)
    assert (link.up, link.down, link.latency, link.jitter) == (1e7, 2e7, 0.05, 0.005)
    assert link.loss == 0.01
    timeout = job.streaming.streaming_per_request_timeout
    assert job.clients.round_timeout > timeout > 2 * 8 * 2500 * MB / 1e7


def test_what_a_mode_needs_follows_from_who_holds_the_model():
    clients = 4
    plan = make(clients=clients)
    need = {case.name: plan.need(case) for case in plan.cases}
    assert need["native"].memory > need["pull"].memory + 2 * clients * GIB - 100 * MIB
    # A file takes disk instead of the clients' memory; the model's builder holds it in any case.
    assert GIB < need["file"].memory < need["pull"].memory - (clients - 1.2) * GIB
    assert need["file"].disk == need["pull"].disk + clients * GIB


def test_what_takes_minutes_is_run_once_unless_it_is_told_otherwise():
    assert make(5000 * MB).repeat == 3
    assert make(5000 * MB, clients=4).repeat == make(codecs="int8").repeat == 1
    assert make(4 * MB, links=["10Mbit"]).repeat == 1
    assert make(5000 * MB, clients=4, repeat=2).repeat == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"size": 3}, "--model-size 3: weights are float32, so a multiple of 4"),
        ({"size": 8, "tensors": 3}, "--tensors 3"),
        ({"modes": "pull,warp"}, "no mode 'warp'; known are pull, native, map, file"),
        ({"modes": ","}, "--modes ',': nothing is named"),
        ({"codecs": "int8", "modes": "file"}, "file goes without --codecs"),
        ({"codecs": "int8", "size": 64 * KIB}, "bodies of up to 64 KiB go as they are"),
        ({"codecs": "shuffle:3+zstd"}, "--codecs shuffle:3+zstd: only cast, "),
        ({"links": ["10MB"]}, "--network 10MB"),
    ],
)
def test_options_that_make_no_cases_are_refused(options, words):
    with pytest.raises(UsageError, match=re.escape(words)):
        make(**options)


@pytest.mark.parametrize(
    ("options", "name", "words"),
    [
        ({"codecs": "topq"}, "topq", "did you mean topk?"),
        ({"codecs": "shuffle+zstd:99"}, "shuffle+zstd:99", "from 1 to 19"),
        ({"codecs": "int8/topk"}, "int8/topk", "streaming.codecs.down[0]"),
        ({"modes": "map", "links": ["10Mbit"]}, "map", "streaming.mode"),
    ],
)
def test_settings_that_make_no_job_are_refused_with_the_case_and_the_key(options, name, words):
    with pytest.raises(UsageError, match=re.escape(words)) as refused:
        jobs(**options)
    assert str(refused.value).startswith(f"the case {name} cannot be run:\n")


DIGESTS = {None: "fe5ef5a158ecba738bbd5c742b5a8fe2", 3: "5e04726e4781cc990dc697000a680367"}


@pytest.mark.parametrize("tensors", [None, 3])
def test_a_model_has_exactly_the_bytes_that_were_asked_for_and_the_same_each_time(tensors):
    one, other = build(MIB + 4, tensors), build(MIB + 4, tensors)
    assert one.layout.nbytes == MIB + 4
    assert body_digest(one) == body_digest(other) == DIGESTS[tensors]
    # It may be read again, or from any place on.
    bodies = [bytearray(100), bytearray(100)]
    one.read(MIB // 2 + 4, MIB // 2 + 104, memoryview(bodies[0]))
    build(MIB + 4, tensors).read(MIB // 2 + 4, MIB // 2 + 104, memoryview(bodies[1]))
    assert bodies[0] == bodies[1]


def test_updates_are_those_of_their_site_and_round():
    updates = np.zeros((4, 3000), np.float32)
    for numbers, (site, number) in zip(updates, [(1, 1), (1, 1), (2, 1), (1, 2)], strict=True):
        add_update("tensor.0", numbers, site, number)
    assert np.array_equal(updates[0], updates[1])
    assert all(abs(np.corrcoef(pair)[0, 1]) < 0.1 for pair in pairwise(updates[1:]))


MBIT = 1e6


def link_of(up=None, down=None, *more, **others):
    """A link of which only these are given."""
    named = dict(zip(("up", "down", "latency", "jitter", "loss"), (up, down, *more), strict=False))
    return LinkSection(**{key: rate for key, rate in {**named, **others}.items() if rate})


@pytest.mark.parametrize(
    ("text", "link"),
    [
        ("10Mbit,50ms", link_of(10 * MBIT, 10 * MBIT, 0.05)),
        ("10Mbit/100Mbit,50ms,5ms,1%", link_of(10 * MBIT, 100 * MBIT, 0.05, 0.005, 0.01)),
        ("10 Mbit/s / 1 Gbit/s", link_of(10 * MBIT, 1000 * MBIT)),
        ("250kbit/s", link_of(0.25 * MBIT, 0.25 * MBIT)),
        (",50ms", link_of(latency=0.05)),
        ("/20Mbit", link_of(None, 20 * MBIT)),
        ("1e6,,,0.5", link_of(MBIT, MBIT, loss=0.5)),
    ],
)
def test_a_link_is_a_text_on_a_command_line(text, link):
    assert parse_link(text) == link


@pytest.mark.parametrize(
    "text", ["", ",", "fast", "10MB", "1Mbit,2s,3s,0,5", "1/2/3", "1Mbit,-1s", "1Mbit,1s,1s,1"]
)
def test_what_is_no_link_is_refused_with_the_grammar(text):
    with pytest.raises(UsageError, match=re.escape("write RATE[/RATE][,LATENCY[,JITTER[,LOSS]]]")):
        parse_link(text)


@given(st.text(max_size=30))
def test_no_text_is_more_than_refused(text):
    with suppress(UsageError):
        assert isinstance(parse_link(text), LinkSection)
