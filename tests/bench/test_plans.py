"""What a bench measures and predicts, of which codecs and links, and which model it makes."""

import re
from pathlib import Path

import numpy as np
import pytest
from bench_plans import GIB, MIB, make_codec_plan, make_plan

from flstream.bench.codec_cases import STANDARD, parse_codecs
from flstream.bench.codec_plan import MOST_SECONDS, shortened
from flstream.bench.exchange import Need, fits, link_seconds
from flstream.bench.limits import MachineLimits
from flstream.bench.model_like import add_update, build, shapes
from flstream.bench.plan import Case
from flstream.errors import UsageError
from flstream.job.link import parse_link
from flstream.simulation.forecasting.fitting import Available

MB = 10**6
SLOW = parse_link("10Mbit,50ms")


def test_what_a_mode_needs_follows_from_who_holds_the_model():
    clients = 4
    plan = make_plan(clients=clients)
    need = {case.mode: plan.need(case) for case in plan.cases}
    assert {plan.job(case).clients.workers for case in plan.cases} == {clients}
    assert need["native"].memory > need["pull"].memory + 2 * clients * GIB - 100 * MIB
    assert need["native"].server > (clients + 1) * GIB
    assert need["pull"].server < 96 * MIB
    # A file takes disk instead of the clients' memory; the model's builder holds it in any case.
    assert need["file"].client < 64 * MIB
    assert need["file"].memory > GIB
    assert need["file"].disk == need["pull"].disk + clients * GIB
    rooms = [(10, 10), (9, 10), (10, 9), (10, None)]
    small = Need(memory=10, server=1, client=1, disk=10)
    assert [fits(small, Available(*room, Path())) for room in rooms] == [True, False, False, True]


def test_a_slower_machine_or_link_means_longer_runs():
    fast, slow = (MachineLimits(1e10, {2 << 20: rate}, 1e9) for rate in (4e9, 1e9))
    plan, pull = make_plan(modes=["pull", "native"]), Case("pull", 2 << 20)
    assert plan.expected_seconds(pull, slow) > plan.expected_seconds(pull, fast)
    linked = make_plan(model_bytes=25 * MB, modes=["pull"], network=SLOW)
    assert 4 * 20 < linked.expected_seconds(pull, fast) < 4 * 20 + 10
    codecs = make_codec_plan(measured_bytes=25 * MB, network=SLOW)
    expected = {case.name: codecs.expected_seconds(case) for case in codecs.cases}
    assert expected["topk"] < expected["int8"] < expected["zstd"] < expected["none"]


def codecs_of(case):
    return make_codec_plan(cases=[case]).job(case).streaming.codecs


def test_the_exchange_without_codecs_is_first_and_each_case_there_once():
    names = [case.name for case in parse_codecs("int8, zstd,none,zstd:1 ,int8:256")]
    assert names == ["none", "int8", "zstd"]
    names = [case.name for case in parse_codecs("all,topk:0.1")]
    assert names == ["none", *STANDARD, "topk:0.1"]
    assert {case.name for case in parse_codecs("all") if case.leaves_out} == {"topk", "ternary"}


def test_a_value_is_that_of_the_codecs_only_key():
    cases = parse_codecs("topk:0.05,int8:64,cast:f16,zstd:3,ternary:1")[1:]
    args = [codecs_of(case).up[0].args for case in cases]
    assert args == [{"fraction": 0.05}, {"group": 64}, {"to": "f16"}, {"level": 3}, {"fraction": 1}]


def test_exact_codecs_work_both_ways_and_those_with_a_loss_on_updates():
    for entry, up, down in (
        ("topk:0.1+shuffle+zstd", ["topk", "shuffle", "zstd"], ["shuffle", "zstd"]),
        ("int8/cast", ["int8"], ["cast"]),
        ("topk+zstd/none", ["topk", "zstd"], []),
    ):
        codecs = codecs_of(parse_codecs(entry)[1])
        assert [each.type for each in codecs.up] == up
        assert [each.type for each in codecs.down] == down


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("topq", "topq: there is no codec 'topq'; did you mean topk?"),
        ("shuffle+zstd:99", "zstd:99: must be a whole number from 1 to 19"),
        ("int8+delta+zstd", "delta: must be left out"),
        ("int8/topk", "topk: must be a codec of whole models"),
    ],
)
def test_what_is_no_list_of_codecs_is_refused_with_its_entry(text, words):
    with pytest.raises(UsageError, match=re.escape(words)) as refused:
        parse_codecs(text)
    assert str(refused.value).startswith(f"--codecs {text}: ")


def test_a_model_is_as_short_as_its_slower_direction_asks_for():
    for size, link, expected in (
        (250 * MB, "1Gbit/10Mbit", 25 * MB),
        (250 * MB, "1Gbit", 250 * MB),
        (250 * MB, "1kbit", 1 << 20),
        (100_000, "1kbit", 100_000),
    ):
        assert shortened(size, parse_link(link)) == expected
    assert shortened(10**12, SLOW) * 8 / SLOW.up == pytest.approx(MOST_SECONDS, rel=1e-3)


def test_the_job_has_the_link_and_as_much_time_as_it_takes():
    link = parse_link("10Mbit/20Mbit,50ms,5ms,1%")
    plan = make_codec_plan(measured_bytes=2500 * MB, network=link)
    job = plan.job(plan.cases[0])
    assert job.network.link("site-2", job.seed) == link
    timeout = job.streaming.streaming_per_request_timeout
    assert job.clients.round_timeout > timeout > 2 * max(link_seconds(link, 2500 * MB))


@pytest.mark.parametrize("size", [4, 32_772])
def test_a_model_has_exactly_the_bytes_that_were_asked_for(size):
    assert 4 * sum(int(np.prod(shape)) for shape in shapes(size // 4).values()) == size
    assert shapes(10, tensors=3) == {"tensor.0": (4,), "tensor.1": (3,), "tensor.2": (3,)}


def test_weights_and_updates_are_seeded():
    one, other = build(1 << 18), build(1 << 18)
    assert all(one[name].equal(other[name]) for name in one)
    found = np.zeros((4, 3000), np.float32)
    for numbers, (site, number) in zip(found, [(1, 1), (1, 1), (2, 1), (1, 2)], strict=True):
        add_update("layers.0.weight", numbers, site, number)
    assert np.array_equal(found[0], found[1])
    assert np.abs(np.corrcoef(found[1:])[0, 1:]).max() < 0.1
