"""What a link of a bench takes, how short a model is measured for it, and the job over it."""

import pytest
from bench_plans import make_codec_plan

from flstream.bench.codec_plan import MOST_SECONDS, shortened
from flstream.bench.exchange import link_seconds
from flstream.bench.limits import MachineLimits
from flstream.bench.plan import Case, Plan
from flstream.job.link import parse_link

MB = 10**6
SLOW = parse_link("10Mbit,50ms")


def test_a_link_takes_its_rate_and_its_latency_in_each_direction():
    assert link_seconds(SLOW, 25 * MB) == (20.05, 20.05)
    assert link_seconds(parse_link("1Mbit/100Mbit"), MB) == pytest.approx((0.08, 8.0))
    assert link_seconds(parse_link(",50ms"), 25 * MB) == (0.05, 0.05)
    assert link_seconds(None, 25 * MB) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("size", "link", "expected"),
    [
        (250 * MB, "10Mbit,50ms", 25 * MB),
        (250 * MB, "10Mbit/1Gbit", 25 * MB),
        (250 * MB, "1Gbit/10Mbit", 25 * MB),
        (250 * MB, "1Gbit", 250 * MB),
        (250 * MB, ",50ms", 250 * MB),
        (250 * MB, "1kbit", 1 << 20),
        (100_000, "1kbit", 100_000),
    ],
)
def test_a_model_is_as_short_as_its_slower_direction_asks_for(size, link, expected):
    assert shortened(size, parse_link(link)) == expected
    assert shortened(size, None) == size


def test_a_shortened_model_goes_over_its_link_in_the_time_that_is_meant():
    for rate in ("3333333", "10Mbit", "77Mbit"):
        link = parse_link(rate)
        size = shortened(10**12, link)
        assert size % 4 == 0
        assert link_seconds(link, size).up == pytest.approx(MOST_SECONDS, rel=1e-3)


def test_the_job_has_the_link_and_as_much_time_as_it_takes():
    plan = make_codec_plan(
        measured_bytes=2500 * MB, network=parse_link("10Mbit/20Mbit,50ms,5ms,1%")
    )
    job = plan.job(plan.cases[0])
    link = job.network.link("site-2", job.seed)
    assert (link.up, link.down, link.latency, link.jitter, link.loss) == (
        1e7,
        2e7,
        0.05,
        0.005,
        0.01,
    )
    slower = max(link_seconds(link, 2500 * MB))
    assert job.streaming.streaming_per_request_timeout > 2 * slower
    assert job.clients.round_timeout > job.streaming.streaming_per_request_timeout


def test_without_a_link_nothing_is_emulated():
    plan = make_codec_plan(network=None)
    assert not plan.job(plan.cases[0]).network.is_on


def test_modes_over_a_link_are_expected_to_take_what_it_takes():
    limits = MachineLimits(1e10, {2 << 20: 4e9}, 1e9)
    case = Case("pull", 2 << 20)
    plan = Plan(25 * MB, 2, ["pull"], [2 << 20], None, 1, SLOW)
    assert plan.job(case).network.is_on
    assert 4 * 20 < plan.expected_seconds(case, limits) < 4 * 20 + 10


def test_codecs_are_expected_to_take_less_than_none():
    plan = make_codec_plan(measured_bytes=25 * MB, network=SLOW)
    expected = {case.name: plan.expected_seconds(case) for case in plan.cases}
    assert expected["topk"] < expected["int8"] < expected["zstd"] < expected["none"]
    assert expected["none"] > 4 * 20
