"""The chunk size that a machine chooses: a candidate, and a longer one only where it saves."""

from hypothesis import given
from hypothesis import strategies as st

from flstream.streaming.chunk_choice import CANDIDATES, cheapest, cpu_seconds, measured_chunk_size

MIB = 1 << 20


def test_a_longer_chunk_is_chosen_only_where_it_saves_more_than_noise():
    assert cheapest({MIB: 1.0, 2 * MIB: 0.99, 4 * MIB: 0.985}) == MIB
    assert cheapest({MIB: 1.0, 2 * MIB: 0.9, 4 * MIB: 0.89}) == 2 * MIB
    assert cheapest({MIB: 1.0, 2 * MIB: 1.1, 4 * MIB: 0.9}) == 4 * MIB
    assert cheapest({MIB: 1.0, 2 * MIB: 0.8, 4 * MIB: 0.9}) == 2 * MIB


@given(st.lists(st.floats(1e-6, 1e3), min_size=3, max_size=3))
def test_no_other_size_is_much_cheaper_than_the_one_chosen(costs):
    seconds = dict(zip(CANDIDATES, costs, strict=True))
    assert 0.96 * seconds[cheapest(seconds)] <= min(costs)


def test_every_size_is_measured_by_real_downloads():
    seconds = cpu_seconds((MIB, 4 * MIB), nbytes=8 * MIB)
    assert list(seconds) == [MIB, 4 * MIB]
    assert all(0 < each < 10 for each in seconds.values())
    assert measured_chunk_size() in CANDIDATES
