"""The links of a job file: values, distributions, single sites and traces; and texts of them."""

import math
import pickle

import pytest

from flstream.job.network_section import NetworkLink, TracePoint

MBIT = 1e6


def links(job):
    return job.network.links(job.clients.site_names, job.seed)


def test_every_site_has_the_link_that_is_given_and_a_single_one_its_own(load):
    text = """network {
      up = 10 Mbit, down = 100 Mbit/s, latency = 50 ms, jitter = 5 ms, loss = 1%
      sites { site-2 { up = 1 Mbit, down = null, loss = 0 } }
    }"""
    found = links(load(text))
    assert found["site-1"] == NetworkLink(10 * MBIT, 100 * MBIT, 0.05, 0.005, 0.01)
    assert found["site-2"] == NetworkLink(MBIT, None, 0.05, 0.005, 0.0)
    assert len(found) == 8
    assert links(load()) == {}


SPREADS = """
network {
  up { distribution = lognormal, median = 10 Mbit, sigma = 0.5 }
  down { distribution = uniform, low = 20 Mbit, high = 30 Mbit }
  loss { distribution = lognormal, median = 0.5, sigma = 9 }
  sites { site-3 { latency { distribution = uniform, low = 1 ms, high = 2 ms } } }
}
"""


def test_each_site_draws_its_own_by_the_seed_and_its_name_alone(load):
    found = links(load(SPREADS, "seed=3"))
    assert len({link.up for link in found.values()}) == 8
    assert all(20 * MBIT <= link.down <= 30 * MBIT for link in found.values())
    assert all(0 <= link.loss < 1 for link in found.values())
    assert 0.001 <= found["site-3"].latency <= 0.002
    others = links(load(SPREADS, "seed=3", "clients.count=200", "clients.parallel=3"))
    assert {site: others[site] for site in found} == found
    rates = sorted(link.up for link in others.values())
    assert rates[99] == pytest.approx(10 * MBIT, rel=0.2)
    assert rates[-32] == pytest.approx(10 * MBIT * math.exp(0.5), rel=0.2)
    assert links(load(SPREADS, "seed=4")) != found


TRACES = """site,seconds,up,down,latency
site-1,0,1 Mbit,2 Mbit/s,10 ms
site-1,1,0,,
site-1,3,4000000,,20 ms

site-2,0,,5 Mbit,
"""


def test_a_trace_says_how_a_link_changes(load, folder):
    (folder / "links.csv").write_text(TRACES)
    found = links(load("network { down = 9 Mbit, latency = 1 s, traces = links.csv }"))
    assert found["site-1"].trace == (
        TracePoint(0, MBIT, 2 * MBIT, 0.01),
        TracePoint(1, 0.0),
        TracePoint(3, 4 * MBIT, None, 0.02),
    )
    assert found["site-1"].period == 5
    assert found["site-2"].trace == (TracePoint(0, None, 5 * MBIT),)
    assert found["site-3"] == NetworkLink(down=9 * MBIT, latency=1.0)
    # Means over its five seconds.
    facts = found["site-1"].facts
    assert facts.up == pytest.approx((1 + 0 + 8) / 5 * MBIT)
    assert facts.down == pytest.approx((2 + 18 + 18) / 5 * MBIT)
    assert facts.latency == pytest.approx((0.01 + 2 + 0.04) / 5)
    assert found["site-2"].facts.up is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "line 1: the columns are missing"),
        ("site,up\na,1\n", "line 2: seconds: missing"),
        ("site,seconds,upp\na,0,1\n", "line 2: upp: unknown key; did you mean up?"),
        ("site,seconds,up,up\n", "line 1: the columns are site, seconds, up, up"),
        ("site,seconds,up\n", "has no rows"),
        ("site,seconds,up\nsite-1,0\n", "line 2: 2 columns instead of 3"),
        ("site,seconds,up\n,0,1\n", "line 2: site: missing"),
        ("site,seconds,up\nsite-1,,1\n", "line 2: seconds: missing"),
        ("site,seconds,up\nsite-1,x,1\n", 'line 2: seconds: given "x"; must be a duration'),
        ("site,seconds,up\nsite-1,nan,1\n", 'line 2: seconds: given "nan"'),
        ("site,seconds,up\nsite-1,1,1\n", "line 2: the trace of site-1 has to begin at 0"),
        ("site,seconds,up\nsite-1,0,10 MB\n", 'line 2: up: given "10 MB"; must be 0, or a rate'),
        ("site,seconds,up\nsite-1,0,-1\n", 'line 2: up: given "-1"'),
        ("site,seconds,up\nsite-1,0,0.5\n", 'line 2: up: given "0.5"; must be 0, or a rate from 1'),
        ("site,seconds,up\nsite-1,0,nan\n", 'line 2: up: given "nan"'),
        ("site,seconds,latency\nsite-1,0,2 h\n", 'line 2: latency: given "2 h"'),
        ("site,seconds,up\nsite-1,0,5\n\nsite-1,0,5\n", "line 4: seconds of site-1 is 0 after 0"),
        ("site,seconds,up\nsite-1,0,0\nsite-1,1,0\n", "up of site-1 is 0 at all times"),
        ("site,seconds,up\nsite-1,0,5\nward,0,5\n", "given ward; must be sites of the job"),
        ("\ud800", "cannot be read"),
    ],
)
def test_a_mistake_in_a_trace_is_named_with_its_line(mistakes, folder, text, words):
    (folder / "links.csv").write_bytes(text.encode("utf-8", "surrogatepass"))
    [problem] = mistakes("network.traces = links.csv")
    assert problem.key == "network.traces"
    assert "links.csv" in str(problem)
    assert words in str(problem)


def test_a_resolved_job_has_the_same_links(load, reloaded, folder):
    (folder / "links.csv").write_text(TRACES)
    sites = 'sites { site-3 { up = 1500 bit }, "site-4" { down = null } }, traces = links.csv'
    job = load(SPREADS + f"network {{ jitter = 5 ms, {sites} }}", "seed=3")
    again = reloaded(job)
    assert again == job
    assert links(again) == links(job)
    assert pickle.loads(pickle.dumps(job)) == job


def test_peers_wait_for_what_a_link_may_hold_back():
    assert NetworkLink(up=1e3).silence == 0
    assert NetworkLink(latency=3.0, jitter=1.0).silence == 8
    assert NetworkLink(latency=1.0, loss=0.01).silence >= 2 * (1 + 4)
    outage = NetworkLink(trace=(TracePoint(0, 0.0), TracePoint(7, 1e6), TracePoint(9, 0.0)))
    assert outage.silence >= 9 + 2
    apart = NetworkLink(trace=(TracePoint(0, 0.0, 1e6), TracePoint(30, 1e6, 0.0)))
    assert apart.silence == 2 * 30  # one way after the other
