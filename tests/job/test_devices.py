"""The devices of sites: sections that sites draw, files of a fleet, and when a site is there."""

import math
import pickle
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flstream.job.availability import AlternatingPeriods, RecurringPeriods
from flstream.job.distributions import number_of
from flstream.runs.job_match import files_of

HOUR, SECOND, MILLISECOND = 3600 * 10**9, 10**9, 10**6
VIRTUAL = "\ntime.clock = virtual\n"


def devices(job):
    return {site: job.device(site) for site in job.clients.site_names}


@pytest.fixture
def fleet(load):
    """The devices of a job's sites, of the text of its section."""
    return lambda text, *overrides: devices(load(f"{VIRTUAL}devices {{ {text} }}", *overrides))


KINDS = """
phone { share = 0.7, speed { distribution = lognormal, median = 0.5, sigma = 0.4 }, up = 2 Mbit }
laptop { share = 0.3, memory { distribution = uniform, low = 4 GiB, high = 8 GiB }, dropout = 5% }
"""


def test_sites_draw_a_device_by_its_share_and_their_own_values_of_it(fleet):
    found = fleet(KINDS, "clients.count=2000", "clients.parallel=2")
    kinds = Counter(device.name for device in found.values())
    assert kinds["phone"] == pytest.approx(1400, abs=60)
    phones = sorted(device.speed for device in found.values() if device.name == "phone")
    assert phones[len(phones) // 2] == pytest.approx(0.5, rel=0.05)
    assert phones[round(0.84 * len(phones))] == pytest.approx(0.5 * math.exp(0.4), rel=0.1)
    laptops = [device for device in found.values() if device.name == "laptop"]
    assert {(device.speed, device.dropout, device.up) for device in laptops} == {(1, 0.05, None)}
    assert all(4 << 30 <= device.memory <= 8 << 30 for device in laptops)
    assert len({device.memory for device in laptops}) == len(laptops)


def test_a_device_depends_on_the_seed_and_the_site_alone(load):
    few = load(f"{VIRTUAL}devices {{ {KINDS} }}", "seed=3")
    many = load(f"{VIRTUAL}devices {{ {KINDS} }}", "seed=3", "clients.count=500")
    backwards = {site: many.device(site) for site in reversed(few.clients.site_names)}
    assert backwards == devices(few) == devices(few)
    assert devices(load(f"{VIRTUAL}devices {{ {KINDS} }}", "seed=4")) != devices(few)


def test_without_shares_all_devices_are_equally_likely(fleet):
    found = fleet("a {}, b {}, c {}", "clients.count=3000")
    assert all(900 < count < 1100 for count in Counter(d.name for d in found.values()).values())


def test_a_devices_own_link_stands_before_that_of_the_network(load):
    text = """
    network { up = 1 Mbit, down = 8 Mbit, latency = 50 ms, sites { site-2 { up = 3 Mbit } } }
    devices { phone { up = 2 Mbit, latency = 20 ms } }
    """
    job = load(VIRTUAL + text)
    first, second = job.device("site-1"), job.device("site-2")
    assert (first.up, first.down, first.latency) == (2e6, 8e6, 0.02)
    assert first == second
    plain = load(VIRTUAL + text, "devices={}").device("site-2")
    assert (plain.name, plain.speed, plain.up, plain.down, plain.latency) == ("", 1, 3e6, 8e6, 0.05)


def test_links_are_added_up_on_the_virtual_clock_and_paced_on_the_wall_clock(load):
    paced, added = load("network.up = 1 Mbit"), load(VIRTUAL + "network.up = 1 Mbit")
    assert paced.paces_links
    assert not added.paces_links
    assert len(paced.links(paced.clients.site_names)) == 8
    assert added.links(added.clients.site_names) == {}
    assert added.is_on_one_disk
    assert not paced.is_on_one_disk


# A file of a fleet.


def test_sites_draw_a_row_of_a_file_by_its_share(load, folder):
    (folder / "fleet.csv").write_text(
        "device,share,speed,up,memory,dropout\nold,0.75,0.5,1 Mbit,,\nnew,0.25,4,,6 GiB,1%\n"
    )
    job = load(VIRTUAL + "network.up = 9 Mbit, devices.file = fleet.csv", "clients.count=1000")
    found = devices(job)
    kinds = Counter(found.values())
    assert {(d.name, d.speed, d.up, d.memory, d.dropout) for d in kinds} == {
        ("old", 0.5, 1e6, None, 0),
        ("new", 4, 9e6, 6 << 30, 0.01),
    }
    assert Counter(device.name for device in found.values())["old"] == pytest.approx(750, abs=45)


def test_rows_without_shares_are_equally_likely_and_may_be_alike(load, folder):
    (folder / "fleet.csv").write_text("speed\n1\n1\n2\n")
    found = devices(load(VIRTUAL + "devices.file = fleet.csv", "clients.count=3000"))
    assert {device.name for device in found.values()} == {"fleet"}
    assert Counter(d.speed for d in found.values())[1.0] == pytest.approx(2000, abs=80)


def test_a_row_may_be_the_device_of_one_site(load, folder):
    (folder / "fleet.csv").write_text("site,device,speed\nsite-2,phone,3\nsite-5,,7\n")
    text = "devices { file = fleet.csv, phone { share = 1, speed = 0.5, dropout = 10% } }"
    found = devices(load(VIRTUAL + text))
    assert (found["site-2"].name, found["site-2"].speed, found["site-2"].dropout) == (
        "phone",
        3,
        0.1,
    )
    assert (found["site-5"].name, found["site-5"].speed, found["site-5"].dropout) == ("fleet", 7, 0)
    assert {found[f"site-{n}"].speed for n in (1, 3, 4, 6, 7, 8)} == {0.5}


def test_a_section_has_what_rows_of_its_device_leave_out(load, folder):
    (folder / "fleet.csv").write_text("device,speed\nphone,3\nphone,\n")
    text = "devices { file = fleet.csv, phone { speed = 2, dropout = 10% } }"
    found = devices(load(VIRTUAL + text, "clients.count=40"))
    assert {(d.name, d.speed, d.dropout) for d in found.values()} == {
        ("phone", 3, 0.1),
        ("phone", 2, 0.1),
    }


SITES = "".join(f"site-{number},1\n" for number in range(1, 9))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "line 1: the columns are missing"),
        ("device,speed\n", "has no rows"),
        ("device,sped\nphone,1\n", "line 2: sped: unknown key; did you mean speed?"),
        ("device,speed\nphone\n", "line 2: 1 columns instead of 2"),
        ("device,speed\na,1\nphone,fast\n", 'line 3: speed: given "fast"; must be a number'),
        ("device,speed\nphone,0\n", 'line 2: speed: given "0"'),
        ("device,up\nphone,10 MB\n", 'line 2: up: given "10 MB"; must be a rate'),
        ("device,memory\nphone,x\n", 'line 2: memory: given "x"; must be a size'),
        ("device,dropout\nphone,1\n", 'line 2: dropout: given "1"; must be a fraction'),
        ("device,share\na,0.5\nb,0.4\n", "shares add up to 0.9"),
        ("device,share\na,0.5\nb,\n", "line 3: share: missing"),
        ("site,speed\n,1\n", "line 2: site: missing"),
        ("site,speed\nsite-1,1\nsite-1,2\n", "line 3: site-1 is in it twice"),
        ("site,share\nsite-1,1\n", "line 2: share: leave it out"),
        (f"site,speed\n{SITES}ward,1\n", "given ward; must be sites of the job"),
        ("site,speed\nsite-1,1\n", "has no row of site-2"),
    ],
)
def test_a_mistake_in_a_fleet_is_named_with_its_line(mistakes, folder, text, words):
    (folder / "fleet.csv").write_text(text)
    [problem] = mistakes(VIRTUAL + "devices.file = fleet.csv")
    assert problem.key == "devices.file"
    assert "fleet.csv" in str(problem)
    assert words in str(problem)


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        ("phone { share = 0.5 }, laptop { share = 0.4 }", "", "shares add up to 0.9"),
        ("phone { share = 0.5 }, laptop {}", "laptop.share", "missing"),
        ("phone { sped = 1 }", "phone.sped", "did you mean devices.phone.speed?"),
        (
            "phone { speed { distribution = lognormal, median = 1 } }",
            "phone.speed.sigma",
            "missing",
        ),
        ("phone { memory = 5 }", "phone.memory", "a size from 1 KiB"),
        ('"a.b" {}', "", "letters, digits, _ and -"),
        ("phone = 3", "phone", "must be a section { share, speed"),
        ("file = nowhere.csv", "file", "there is no"),
        ("file = fleet.csv, phone { share = 1 }, laptop {}", "phone.share", "must be null"),
        ("file = fleet.csv, phone {}, laptop {}, tablet {}", "tablet", "which has none"),
        ("file = fleet.csv, phone {}", "file", "fleet.csv has laptop"),
        ('phone { available { windows = ["8-20"] } }', "phone.available.windows", "a list of"),
        ('phone { available { windows = ["08:00-08:00"] } }', "phone.available.windows", "begins"),
        ('phone { available { windows = ["08:00-30:00"] } }', "phone.available.windows", "86400 s"),
        ("phone { available { spread = 2 h } }", "phone.available.windows", "missing"),
        ("phone { available { up_for = 2 h } }", "phone.available.down_for", "missing"),
        ("phone { available = nights }", "phone.available", "an existing .csv file"),
    ],
)
def test_a_mistake_in_devices_is_named(mistakes, folder, text, key, words):
    (folder / "fleet.csv").write_text("device,speed\nphone,1\nlaptop,2\n")
    problem = mistakes(f"{VIRTUAL}devices {{ {text} }}")[0]
    assert problem.key == f"devices.{key}".rstrip(".")
    assert words in str(problem)


def test_devices_are_of_the_virtual_clock_and_lost_packets_of_the_wall_clock(mistakes, folder):
    [problem] = mistakes("devices { phone {} }")
    assert (problem.key, problem.hint) == ("devices", "set time.clock = virtual")
    (folder / "links.csv").write_text("site,seconds,up\nsite-1,0,1 Mbit\n")
    text = "jitter = 1 ms, loss = 1%, traces = links.csv, sites { site-1 { jitter = 2 ms } }"
    problems = mistakes(f"{VIRTUAL}network {{ {text} }}")
    keys = ("jitter", "loss", "sites.site-1.jitter", "traces")
    assert [problem.key for problem in problems] == [f"network.{key}" for key in keys]


def test_a_resolved_job_has_the_same_devices(load, reloaded, folder):
    (folder / "fleet.csv").write_text("device,speed,latency\nphone,0.3,20 ms\nlaptop,2,\n")
    (folder / "there.csv").write_text("site,seconds,available\nsite-1,0,1\nsite-1,60,0\n")
    text = """devices {
      file = fleet.csv
      phone { available { windows = ["22:00-06:00", "12:00-13:00:30"], day = 36 h, spread = 1 h } }
      laptop { available = there.csv, memory { distribution = uniform, low = 1 GiB, high = 2 GiB } }
    }"""
    job = load(VIRTUAL + text)
    again = reloaded(job)
    assert again == job == pickle.loads(pickle.dumps(job))
    assert devices(again) == devices(job)
    # A resume compares what is in them.
    assert {"devices.file", "devices.laptop.available"} <= files_of(job).keys()
    kinds = load(f"{VIRTUAL}devices {{ {KINDS} tablet {{ share = 1e-10 }} }}")
    assert devices(reloaded(kinds)) == devices(kinds)


# Availability.


def test_windows_may_pass_midnight(fleet):
    [there] = {
        d.availability for d in fleet('a { available { windows = ["20:00-08:00"] } }').values()
    }
    assert there == RecurringPeriods(24 * HOUR, (0, 20 * HOUR), (8 * HOUR, 24 * HOUR))
    for now, next_there, next_gone in (
        (0, 0, 8 * HOUR),
        (8 * HOUR - 1, 8 * HOUR - 1, 8 * HOUR),
        (8 * HOUR, 20 * HOUR, 8 * HOUR + 1),
        (19 * HOUR, 20 * HOUR, 19 * HOUR + 1),
        (20 * HOUR - 1, 20 * HOUR, 32 * HOUR),
        (23 * HOUR, 23 * HOUR, 32 * HOUR),
        (24 * HOUR, 24 * HOUR, 32 * HOUR),
        (240 * HOUR + 9 * HOUR, 260 * HOUR, 249 * HOUR + 1),
    ):
        assert (there.next_there(now), there.next_gone(now)) == (next_there, next_gone), now


def test_windows_shift_by_site_and_the_day_may_have_another_length(fleet):
    text = 'a { available { windows = ["00:10-00:20", "00:20-00:30"], day = 1 h, spread = 5 m } }'
    found = [device.availability for device in fleet(text, "clients.count=300").values()]
    assert {(each.length, each.starts, each.ends) for each in found} == {
        (HOUR, (600 * SECOND,), (1800 * SECOND,))
    }
    begins = sorted(each.next_there(0) for each in found)
    assert 300 * SECOND <= begins[0] < 320 * SECOND
    assert 880 * SECOND < begins[-1] <= 900 * SECOND
    assert len(set(begins)) == 300


def test_windows_of_the_whole_day_are_always(fleet):
    text = 'a { available { windows = ["06:00-18:00", "12:00-06:00"] } }'
    assert {device.availability for device in fleet(text).values()} == {None}


TRACE = """site,seconds,available
site-1,0,0
site-1,10,1
site-1,15,1
site-1,30.5,0

site-2,0,1
site-3,0,1
site-3,2,0
"""


def test_a_trace_repeats_once_its_last_row_has_held_as_long_as_the_one_before(load, folder):
    (folder / "there.csv").write_text(TRACE)
    found = devices(load(VIRTUAL + "devices.a.available = there.csv"))
    first = found["site-1"].availability
    assert first.next_there(0) == 10 * SECOND
    assert first.next_gone(10 * SECOND) == 30_500 * MILLISECOND
    # The period is 30.5 s and another 15.5 s.
    assert first.next_there(40 * SECOND) == 56 * SECOND
    third = found["site-3"].availability
    assert (third.next_there(2 * SECOND), third.next_gone(0)) == (4 * SECOND, 2 * SECOND)
    assert found["site-2"].availability is found["site-4"].availability is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("site,seconds,available\nsite-1,1,1\n", "line 2: the trace of site-1 has to begin at 0"),
        ("site,seconds,available\nsite-1,0,2\n", 'line 2: available: given "2"'),
        ("site,seconds\nsite-1,0\n", "line 2: available: missing"),
        ("site,seconds,available\nsite-1,0,0\nsite-1,9,0\n", "site-1 is 0 at all times"),
        ("site,seconds,available\nsite-1,0,1\nward,0,1\n", "given ward; must be sites of the job"),
    ],
)
def test_a_mistake_in_a_trace_of_availability_is_named_with_its_line(mistakes, folder, text, words):
    (folder / "there.csv").write_text(text)
    [problem] = mistakes(VIRTUAL + "devices.phone.available = there.csv")
    assert problem.key == "devices.phone.available"
    assert "there.csv" in str(problem)
    assert words in str(problem)


def drawn(site, way, number, mean):
    """The length of a period, from the definition of the exponential distribution."""
    uniform = number_of("devices", 5, f"available/{way}/{number}", site)
    return round(-math.log(uniform) * 10**6) * mean // 10**6


def test_random_periods_alternate_from_the_begin_of_the_run(fleet):
    text = "a { available { up_for = 20 h, down_for = 2 h, distribution = exponential } }"
    there = fleet(text, "seed=5")["site-3"].availability
    first, second = drawn("site-3", "up", 0, 20 * HOUR), drawn("site-3", "down", 0, 2 * HOUR)
    third, fourth = drawn("site-3", "up", 1, 20 * HOUR), drawn("site-3", "down", 1, 2 * HOUR)
    assert (there.next_there(0), there.next_gone(0)) == (0, first)
    assert there.next_there(first) == first + second
    assert there.next_gone(first + second) == first + second + third
    assert there.next_gone(first + second + third) == first + second + third + 1
    assert there.next_there(first + second + third) == first + second + third + fourth
    assert there.next_gone(first - 1) == first
    # On any machine, and in any version to come.
    assert first == 67_492_728 * MILLISECOND
    assert third == (72_640_785_600 - 69_218_913_600) * 1000


def test_lengths_of_random_periods_have_their_means():
    there, now, up, down = AlternatingPeriods(5, "ward", 100 * SECOND, 10 * SECOND), 0, [], []
    for _ in range(4000):
        gone = there.next_gone(now)
        back = there.next_there(gone)
        up.append(gone - now)
        down.append(back - gone)
        now = back
    assert sum(up) / len(up) == pytest.approx(100 * SECOND, rel=0.05)
    assert sum(down) / len(down) == pytest.approx(10 * SECOND, rel=0.05)
    assert sorted(up)[2000] == pytest.approx(100 * SECOND * math.log(2), rel=0.06)


PERIODS = (
    RecurringPeriods(10, (0, 4, 8), (2, 5, 10), shift=3),
    RecurringPeriods(10, (1, 7), (3, 9), shift=-4),
    AlternatingPeriods(1, "ward", 6, 3),
)


@given(st.lists(st.integers(0, 200), min_size=1, max_size=30))
def test_availability_answers_alike_in_whatever_order_it_is_asked(times):
    walked = AlternatingPeriods(1, "ward", 6, 3)
    in_order = {now: (walked.next_there(now), walked.next_gone(now)) for now in sorted(times)}
    for periods in PERIODS:
        for now in times:
            there = periods.next_there(now)
            gone = periods.next_gone(now)
            assert there >= now
            assert gone > now
            assert periods.next_there(there) == there
            assert periods.next_there(gone) > gone
            # Nothing lies between.
            assert all(periods.next_there(time) == there for time in range(now, there))
            assert all(periods.next_there(time) == time for time in range(now + 1, gone))
    assert {
        now: (PERIODS[2].next_there(now), PERIODS[2].next_gone(now)) for now in times
    } == in_order
