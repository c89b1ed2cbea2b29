"""The links of a job file: values, distributions, single sites and traces; and texts of them."""

import math
import pickle
import re
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flstream.errors import UsageError
from flstream.job import JobError, load_job, render_job
from flstream.job.link import NetworkLink, TracePoint, parse_link

MBIT = 1e6


def links(job):
    return job.network.links(job.clients.site_names, job.seed)


def mistakes(write, text):
    with pytest.raises(JobError) as error:
        load_job(write(text))
    return str(error.value)


def test_without_a_key_nothing_is_emulated(write):
    job = load_job(write())
    assert not job.network.is_on
    assert links(job) == {}


def test_every_site_has_the_link_that_is_given_and_a_single_one_its_own(write):
    text = """network {
      up = 10 Mbit, down = 100 Mbit/s, latency = 50 ms, jitter = 5 ms, loss = 1%
      sites { site-2 { up = 1 Mbit, down = null, loss = 0 } }
    }"""
    found = links(load_job(write(text)))
    assert found["site-1"] == NetworkLink(10 * MBIT, 100 * MBIT, 0.05, 0.005, 0.01)
    assert found["site-2"] == NetworkLink(MBIT, None, 0.05, 0.005, 0.0)
    assert len(found) == 8


SPREADS = """
seed = {seed}
network {{
  up {{ distribution = lognormal, median = 10 Mbit, sigma = 0.5 }}
  down {{ distribution = uniform, low = 20 Mbit, high = 30 Mbit }}
  sites {{ site-3 {{ latency {{ distribution = uniform, low = 1 ms, high = 2 ms }} }} }}
}}
"""


def test_each_site_draws_its_own_by_the_seed_and_its_name_alone(write):
    found = links(load_job(write(SPREADS.format(seed=3))))
    assert len({link.up for link in found.values()}) == 8
    assert all(20 * MBIT <= link.down <= 30 * MBIT for link in found.values())
    assert 0.001 <= found["site-3"].latency <= 0.002
    others = load_job(write(SPREADS.format(seed=3) + "clients.count = 200, clients.parallel = 3"))
    assert {site: links(others)[site] for site in found} == found
    rates = sorted(link.up for link in links(others).values())
    assert rates[99] == pytest.approx(10 * MBIT, rel=0.2)
    assert rates[-32] == pytest.approx(10 * MBIT * math.exp(0.5), rel=0.2)
    assert links(load_job(write(SPREADS.format(seed=4)))) != found


def test_what_is_drawn_is_what_a_link_may_have(write):
    text = "network.loss { distribution = lognormal, median = 0.5, sigma = 9 }"
    assert all(0 <= link.loss < 1 for link in links(load_job(write(text))).values())


TRACES = """site,seconds,up,down,latency
site-1,0,1 Mbit,2 Mbit/s,10 ms
site-1,1,0,,
site-1,3,4000000,,20 ms

site-2,0,,5 Mbit,
"""


def test_a_trace_says_how_a_link_changes(write, folder):
    (folder / "links.csv").write_text(TRACES)
    job = load_job(write("network { down = 9 Mbit, latency = 1 s, traces = links.csv }"))
    found = links(job)
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
    ("text", "sentence"),
    [
        ("", r"line 1: the columns are missing; they have to be site, seconds, and any of up, "),
        ("site,up\n", r"line 1: the columns are site, up; they have to be site, seconds"),
        ("site,seconds,upp\n", r"line 1: the columns are site, seconds, upp"),
        ("site,seconds,up,up\n", r"line 1: the columns are site, seconds, up, up"),
        ("site,seconds,up\n", r"has no rows"),
        ("site,seconds,up\nsite-1,0\n", r"line 2: 2 columns instead of 3"),
        ("site,seconds,up\n,0,1\n", r"line 2: the site is missing"),
        ("site,seconds,up\nsite-1,,1\n", r"line 2: seconds is missing"),
        ("site,seconds,up\nsite-1,x,1\n", r"line 2: seconds is 'x', and must be a duration"),
        ("site,seconds,up\nsite-1,nan,1\n", r"line 2: seconds is 'nan'"),
        ("site,seconds,up\nsite-1,1,1\n", r"line 2: the trace of site-1 has to begin at 0"),
        ("site,seconds,up\nsite-1,0,10 MB\n", r"line 2: up is '10 MB', and must be a rate"),
        ("site,seconds,up\nsite-1,0,-1\n", r"line 2: up is '-1'"),
        ("site,seconds,up\nsite-1,0,nan\n", r"line 2: up is 'nan'"),
        ("site,seconds,latency\nsite-1,0,2 h\n", r"line 2: latency is '2 h', and must be a dur"),
        ("site,seconds,up\nsite-1,0,5\n\nsite-1,0,5\n", r"line 4: seconds of site-1 is 0 after 0"),
        ("site,seconds,up\nsite-1,0,0\nsite-1,1,0\n", r"up of site-1 is 0 at all times; give"),
        ("site,seconds,up\nsite-1,0,5\nward,0,5\n", r"line 3: ward is no site of the job"),
    ],
)
def test_a_mistake_in_a_trace_is_named_with_its_line(write, folder, text, sentence):
    (folder / "links.csv").write_text(text)
    message = mistakes(write, "network.traces = links.csv")
    assert re.search(rf"network\.traces: .*links\.csv,? ?:?.*{sentence}", message), message
    assert "\n" not in message.partition("\n  ")[2]


def test_a_trace_that_cannot_be_read_is_refused(write, folder):
    (folder / "links.csv").write_bytes(b"\xff\xfe\0site")
    assert "cannot be read" in mistakes(write, "network.traces = links.csv")
    message = mistakes(write, "network.traces = lnks.csv")
    assert "must be the path of an existing .csv file" in message


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("up = -1", "network.up: given -1; must be a rate from 1 kbit/s to 1 Tbit/s, such as"),
        ("up = 10 MB", 'network.up: given "10 MB"; must be a rate'),
        ("down = 5 bit", 'network.down: given "5 bit"; must be a rate'),
        ("up = nan", 'network.up: given "nan"; must be a rate'),
        ("up = true", "network.up: given true; must be a rate"),
        ("up = [1]", "network.up: given [1]; must be a rate"),
        ("latency = 61 s", 'network.latency: given "61 s"; must be a duration from 0 to 60 s'),
        ("jitter = -1 s", 'network.jitter: given "-1 s"; must be a duration from 0 to 60 s'),
        ("loss = 1", "network.loss: given 1; must be a fraction from 0 to below 1, such as 0.01"),
        ("loss = 100%", 'network.loss: given "100%"; must be a fraction'),
        ("loss = nan", 'network.loss: given "nan"; must be a fraction'),
        ("jiter = 1 s", "network.jiter: unknown key; did you mean network.jitter?"),
        ("sites { site-1 { upp = 1 } }", "network.sites.site-1.upp: unknown key; did you mean up?"),
        ("sites { site-1 = 3 }", "network.sites.site-1: given 3; must be a section with any of up"),
        ("sites { ward { up = 1 Mbit } }", "network.sites: given ward; must be sites of the job"),
        ("sites { site-1 { loss = 2 } }", "network.sites.site-1.loss: given 2; must be a fraction"),
        ("up { median = 1 Mbit }", "network.up.distribution: given null; must be one of lognormal"),
        ("up { distribution = normal }", 'network.up.distribution: given "normal"; must be one of'),
        ("up { distribution = uniform, low = 1 Mbit }", "network.up.high: missing; must be given"),
        (
            "up { distribution = uniform, low = 2 Mbit, high = 1 Mbit }",
            'network.up.high: given "1 Mbit"; must be at least low',
        ),
        (
            "up { distribution = uniform, low = 1 Mbit, high = 2 Mbit, sigma = 1 }",
            "network.up.sigma: unknown key; uniform has low and high",
        ),
        (
            "up { distribution = lognormal, median = 1 Mbit, sigma = -1 }",
            "network.up.sigma: given -1; must be a number of at least 0",
        ),
        (
            "sites { site-1 { up { distribution = lognormal, median = x, sigma = 1 } } }",
            'network.sites.site-1.up.median: given "x"; must be a rate',
        ),
    ],
)
def test_a_mistake_is_one_sentence_that_names_the_key(write, text, sentence):
    message = mistakes(write, f"network {{ {text} }}")
    assert sentence in message
    assert len(message.splitlines()) == 2


def test_sites_that_fold_need_workers_of_their_own(write):
    swarm = "workflow.type = swarm\nclients.parallel = 2\n"
    assert load_job(write(swarm)).clients.workers == 2
    message = mistakes(write, f"{swarm}network.up = 1 Mbit")
    assert "clients.parallel: given 2; must be 8 where links are emulated in swarm" in message


def test_a_resolved_job_has_the_same_links(write, folder):
    (folder / "links.csv").write_text(TRACES)
    sites = 'sites { site-3 { up = 1500 bit }, "site-4" { down = null } }, traces = links.csv'
    job = load_job(write(SPREADS.format(seed=3) + f"network {{ jitter = 5 ms, {sites} }}"))
    (folder / "again.conf").write_text(render_job(job))
    again = load_job(folder / "again.conf")
    assert again == job
    assert links(again) == links(job)
    assert pickle.loads(pickle.dumps(job)) == job


@pytest.mark.parametrize(
    ("text", "link"),
    [
        ("10Mbit,50ms", NetworkLink(10 * MBIT, 10 * MBIT, 0.05)),
        ("10Mbit/100Mbit,50ms,5ms,1%", NetworkLink(10 * MBIT, 100 * MBIT, 0.05, 0.005, 0.01)),
        ("10 Mbit/s / 1 Gbit/s", NetworkLink(10 * MBIT, 1000 * MBIT)),
        ("250kbit/s", NetworkLink(0.25 * MBIT, 0.25 * MBIT)),
        (",50ms", NetworkLink(latency=0.05)),
        ("/20Mbit", NetworkLink(None, 20 * MBIT)),
        ("1e6,,,0.5", NetworkLink(MBIT, MBIT, loss=0.5)),
    ],
)
def test_a_link_is_a_text_on_a_command_line(text, link):
    assert parse_link(text) == link


@pytest.mark.parametrize(
    "text", ["", ",", "fast", "10MB", "1Mbit,2s,3s,0,5", "1/2/3", "1Mbit,-1s", "1Mbit,1s,1s,1"]
)
def test_what_is_no_link_is_refused_with_the_grammar(text):
    with pytest.raises(UsageError, match=r"write RATE\[/RATE\]\[,LATENCY\[,JITTER\[,LOSS\]\]\]"):
        parse_link(text)


@given(st.text(max_size=30))
def test_no_text_is_more_than_refused(text):
    with suppress(UsageError):
        assert isinstance(parse_link(text), NetworkLink)


def test_peers_wait_for_what_a_link_may_hold_back():
    assert NetworkLink(up=1e3).silence == 0
    assert NetworkLink(latency=3.0, jitter=1.0).silence == 8
    assert NetworkLink(latency=1.0, loss=0.01).silence >= 2 * (1 + 4)
    outage = NetworkLink(trace=(TracePoint(0, 0.0), TracePoint(7, 1e6), TracePoint(9, 0.0)))
    assert outage.silence >= 9 + 2
