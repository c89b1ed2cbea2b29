"""The accountant: epsilon is dp-accounting's own for the same parameters."""

import dp_accounting
import msgspec
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from nightly_cases import first_and_nightly

from flstream.aggregation.accountant import NOT_DRAWN, Accounting, epsilon

RDP = Accounting("rdp", "poisson", 1.1, 20, 400, 1e-5)
PLD = msgspec.structs.replace(RDP, accountant="pld")
DRAWN_EXACTLY = msgspec.structs.replace(RDP, sampling="without_replacement")
EACH_DRAWN = dp_accounting.PoissonSampledDpEvent(20 / 400, dp_accounting.GaussianDpEvent(1.1))
FEWER = dp_accounting.PoissonSampledDpEvent(20 / 300, dp_accounting.GaussianDpEvent(1.1))
ALL = dp_accounting.GaussianDpEvent(1.1)


def composed(its_own, *events):
    for event, count in events:
        its_own.compose(event, count)
    return its_own.get_epsilon(1e-5)


@first_and_nightly(("accounting", "its_own"), [(RDP, RdpAccountant), (PLD, PLDAccountant)])
def test_epsilon_is_that_of_dp_accounting(accounting, its_own):
    assert epsilon(accounting, {}) == 0.0
    for count in (1, 37):
        assert epsilon(accounting, {400: count}) == composed(its_own(), (EACH_DRAWN, count))
    assert epsilon(accounting, {NOT_DRAWN: 3}) == composed(its_own(), (ALL, 3))
    mixed = composed(its_own(), (ALL, 1), (FEWER, 2), (EACH_DRAWN, 5))
    assert epsilon(accounting, {400: 5, 300: 2, NOT_DRAWN: 1}) == pytest.approx(mixed, rel=1e-12)


def test_without_replacement_a_sites_data_are_replaced_and_count_twice_the_norm():
    its_own = RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
    event = dp_accounting.SampledWithoutReplacementDpEvent(
        400, 20, dp_accounting.GaussianDpEvent(1.1 / 2)
    )
    assert epsilon(DRAWN_EXACTLY, {400: 30}) == composed(its_own, (event, 30))
    assert epsilon(DRAWN_EXACTLY, {20: 3}) == epsilon(DRAWN_EXACTLY, {NOT_DRAWN: 3})
