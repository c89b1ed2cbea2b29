"""Which sites a round samples, and with which seeds they train."""

from hypothesis import given
from hypothesis import strategies as st

from flstream.server.sampling import sample_sites, site_seed

SITES = [f"site-{number}" for number in range(1, 21)]


@given(count=st.integers(1, 20), seed=st.integers(0, 2**64), number=st.integers(1, 1000))
def test_a_sample_is_distinct_sites_in_their_order_and_repeatable(count, seed, number):
    sample = sample_sites(SITES, count, seed, number)
    assert len(sample) == count
    assert sample == [site for site in SITES if site in set(sample)]
    assert sample == sample_sites(SITES, count, seed, number)


def test_every_site_gets_its_turn():
    turns = [site for number in range(1, 401) for site in sample_sites(SITES, 2, 7, number)]
    counts = [turns.count(site) for site in SITES]
    assert min(counts) > 15
    assert max(counts) < 70


def test_seeds_differ_by_job_site_round_and_task():
    seeds = {
        site_seed(seed, site, number, kind)
        for seed in range(3)
        for site in SITES
        for number in range(1, 6)
        for kind in ("train", "evaluate")
    }
    assert len(seeds) == 3 * 20 * 5 * 2
    assert all(0 <= seed < 2**63 for seed in seeds)
