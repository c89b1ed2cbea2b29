"""The functions a training script calls, where they cannot work; the rest is in whole jobs."""

import numpy as np
import pytest

import flstream.client as flare
from flstream.client.answers import weight_of
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
    assert weight_of(flare.FLModel()) == 1.0
    assert weight_of(flare.FLModel(meta={"num_examples": 30})) == 30.0
    assert weight_of(flare.FLModel(meta={"NUM_STEPS_CURRENT_ROUND": 4})) == 4.0


@pytest.mark.parametrize("weight", [0, -1, float("nan"), float("inf")])
def test_a_weight_that_cannot_be_a_share_of_a_mean_is_refused(weight):
    with pytest.raises(ClientError, match="num_examples"):
        weight_of(flare.FLModel(meta={"num_examples": weight}))


def test_a_model_travels_as_a_payload_without_more_ado():
    model = flare.FLModel({"w": np.ones(3)}, "DIFF", {"loss": 0.5}, 1, 2, {"tags": ("a", None)})
    packed = pack(model)
    received = unpack(packed.message, packed.tensors)
    assert received.params_type is flare.ParamsType.DIFF
    assert received.params["w"].tolist() == [1, 1, 1]
    assert (received.metrics, received.meta) == ({"loss": 0.5}, {"tags": ("a", None)})
