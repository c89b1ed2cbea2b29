"""The functions a training script calls, where they cannot work; the rest is in whole jobs."""

from pathlib import Path

import numpy as np
import pytest

import flstream.client as flare
from flstream.debugging import sentence
from flstream.errors import ClientError
from flstream.streaming.payload import pack, unpack
from flstream.worker.answers import weight_of

CALLS = ["init", "is_running", "receive", "is_train", "is_evaluate", "get_site_name"]
CALLS += ["get_state_dir", "system_info"]


def test_outside_of_a_run_every_call_says_how_to_start_one():
    calls = [getattr(flare, name) for name in CALLS]
    for call in (*calls, lambda: flare.send(flare.FLModel()), lambda: flare.log("loss", 1.0)):
        with pytest.raises(ClientError, match="flstream simulate"):
            call()


def test_params_type_may_be_given_as_a_string_but_not_as_any_string():
    assert flare.FLModel(params_type="DIFF").params_type is flare.ParamsType.DIFF
    with pytest.raises(ValueError, match="HALF"):
        flare.FLModel(params_type="HALF")


def test_the_weight_is_the_number_of_examples_under_either_name():
    assert weight_of({}) == 1.0
    assert weight_of({"NUM_STEPS_CURRENT_ROUND": 4}) == 4.0
    for weight in (1e-15, 1e15, 10**15, np.int64(7), np.float32(0.5), np.ones(1)):
        assert weight_of({"num_examples": weight}) == weight


OUTSIDE = [0, -0.0, -1, np.nan, np.inf, -np.inf, 1e308, 9e-16, 5e-324, 2**50]
NO_NUMBERS = [True, np.True_, "12", b"12", None, 1j, np.ones(2), 10**400]


@pytest.mark.parametrize(
    ("weights", "what"),
    [(OUTSIDE, ", and an update's weight is "), (NO_NUMBERS, "; send the number of examples$")],
    ids=["outside", "no numbers"],
)
def test_what_cannot_be_a_share_of_a_mean_is_refused(weights, what):
    for weight in weights:
        with pytest.raises(ClientError, match=rf"^meta\['num_examples'\] is .*{what}"):
            weight_of({"num_examples": weight})


def test_a_model_travels_as_a_payload_without_more_ado():
    model = flare.FLModel({"w": np.ones(3)}, "DIFF", {"loss": 0.5}, 1, 2, {"tags": ("a", None)})
    received = unpack(*pack(model))
    assert received.params_type is flare.ParamsType.DIFF
    assert received.params["w"].tolist() == [1, 1, 1]
    assert (received.metrics, received.meta) == ({"loss": 0.5}, {"tags": ("a", None)})


class MuteError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ValueError("two\nlines"), "ValueError: two lines"),
        (ValueError("half \ud800"), r"ValueError: half \ud800"),
        (MuteError(), "MuteError"),
    ],
)
def test_an_exception_that_cannot_be_printed_or_sent_has_a_sentence_all_the_same(error, words):
    found = sentence(error, Path("client.py"))
    assert found == f"client.py raised {words}"
    assert found.encode()
