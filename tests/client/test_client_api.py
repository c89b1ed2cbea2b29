"""The functions a training script calls, where they cannot work; the rest is in whole jobs."""

import numpy as np
import pytest

import flstream.client as flare
from flstream.client.weight import weight_of
from flstream.errors import ClientError
from flstream.streaming.payload import pack, unpack


@pytest.mark.parametrize(
    "call",
    [
        flare.init,
        flare.is_running,
        flare.receive,
        lambda: flare.send(flare.FLModel()),
        flare.is_train,
        flare.is_evaluate,
        flare.get_site_name,
        flare.get_state_dir,
        flare.system_info,
        lambda: flare.log("loss", 1.0),
    ],
)
def test_outside_of_a_run_every_call_says_how_to_start_one(call):
    with pytest.raises(ClientError, match="flstream simulate"):
        call()


def test_params_type_may_be_given_as_a_string_but_not_as_any_string():
    assert flare.FLModel(params_type="DIFF").params_type is flare.ParamsType.DIFF
    with pytest.raises(ValueError, match="HALF"):
        flare.FLModel(params_type="HALF")


def test_the_weight_is_the_number_of_examples_under_either_name():
    assert weight_of({}) == 1.0
    assert weight_of({"num_examples": 30}) == 30.0
    assert weight_of({"NUM_STEPS_CURRENT_ROUND": 4}) == 4.0


@pytest.mark.parametrize("weight", [1e-15, 1e15, 10**15, np.int64(7), np.float32(0.5), np.ones(1)])
def test_a_weight_is_any_number_within_the_limits(weight):
    assert weight_of({"num_examples": weight}) == weight


@pytest.mark.parametrize(
    "weight", [0, -0.0, -1, np.nan, np.inf, -np.inf, 1e308, 9e-16, 5e-324, 2**50]
)
def test_a_weight_that_cannot_be_a_share_of_a_mean_is_refused(weight):
    with pytest.raises(
        ClientError, match=r"^meta\['num_examples'\] is .*, and an update's weight is "
    ):
        weight_of({"num_examples": weight})


@pytest.mark.parametrize(
    ("weight", "what"),
    [
        (True, "a bool that is no number"),
        (np.True_, "a bool.* that is no number"),
        ("12", "a str that is no number"),
        (b"12", "a bytes that is no number"),
        (None, "a NoneType that is no number"),
        (1j, "a complex that is no number"),
        (np.ones(2), r"a ndarray of shape \[2\] that is no number"),
        (10**400, "an int that no float can hold"),
    ],
)
def test_a_weight_that_is_no_number_is_refused(weight, what):
    message = rf"^meta\['num_examples'\] is {what}; send the number of examples$"
    with pytest.raises(ClientError, match=message):
        weight_of({"num_examples": weight})


def test_a_model_travels_as_a_payload_without_more_ado():
    model = flare.FLModel({"w": np.ones(3)}, "DIFF", {"loss": 0.5}, 1, 2, {"tags": ("a", None)})
    packed = pack(model)
    received = unpack(packed.message, packed.tensors)
    assert received.params_type is flare.ParamsType.DIFF
    assert received.params["w"].tolist() == [1, 1, 1]
    assert (received.metrics, received.meta) == ({"loss": 0.5}, {"tags": ("a", None)})
