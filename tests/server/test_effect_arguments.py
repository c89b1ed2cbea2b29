"""The digest of an effect's arguments, by which replay tells one effect from another."""

import numpy as np
import pytest

from flstream.errors import ReplayMismatchError
from flstream.server.effects import EffectJournal


def asked(arguments, records=()):
    """The record of an effect that was asked for with some arguments, done or replayed."""
    emitted = [*records]
    journal = EffectJournal(records, emitted.append)
    journal.once("write_json", 1, "write_json(x)", arguments, lambda _: (None, None), type(None))
    return emitted[0]


def test_equal_arguments_are_one_effect_and_others_another():
    weights = {"b": np.float32(0.1), "a": float("nan"), "tags": {"x", "y", "z"}, "raw": b"\x00"}
    record = asked([weights, None, 7])
    same = {"tags": {"z", "y", "x"}, "b": np.float32(0.1), "a": float("nan"), "raw": b"\x00"}
    assert asked([same, None, 7], [record]) is record
    for other in ([weights, None, 8], [weights | {"b": np.float32(0.2)}, None, 7], [weights, 7]):
        with pytest.raises(ReplayMismatchError):
            asked(other, [record])


def test_what_has_no_words_that_stay_is_refused():
    with pytest.raises(TypeError, match="a object cannot be kept in the journal"):
        asked([object()])
