"""Scripts that import NVFlare's names, whether or not that is installed."""

import pytest
from safetensors.torch import load_file

from flstream.client import FLModel
from flstream.job.imports import missing_modules
from flstream.worker import alias

MODEL = """
import torch


def build(size=3):
    return torch.nn.Linear(size, 1)
"""

FACE = """
import nvflare.client as flare
import nvflare.client.api
from nvflare.client import tracking
from nvflare.client.lightning import logger
from nvflare.app_common.utils.fedprox_utils import get_fedprox_mu
from nvflare.app_opt.pt.fedce import PTFedCEHelper
from nvflare.fuel.utils.log_utils import get_obj_logger
from nvflare.apis.analytix import AnalyticsDataType
from nvflare.apis.fl_constant import FLMetaKey
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.app_constant import AlgorithmConstants, ModelName
from nvflare.app_common.np.constants import NPConstants
from nvflare.app_opt.pt.fedproxloss import PTFedProxLoss
import copy
import torch

net = torch.nn.Linear(3, 1)
nvflare.client.api.init()
assert (ModelName.BEST_MODEL, NPConstants.NUMPY_KEY) == ("best_model", "numpy_key")
assert AlgorithmConstants.SCAFFOLD_CTRL_DIFF == "scaffold_c_diff"
assert AlgorithmConstants.FEDPROX_MU == "fedprox_mu"
assert get_obj_logger(net).name.endswith(".Linear")
tracking.init()
for refused, words in ((PTFedCEHelper, "no PTFedCEHelper"), (logger, "import lightning.pytorch")):
    try:
        refused()
    except Exception as error:
        assert words in str(error)
    else:
        raise AssertionError(words)
assert flare.get_job_id() == flare.system_info()["job_id"] == "test"
assert flare.get_config()["model_args"] == {"size": 3}
while flare.is_running():
    received = flare.receive()
    assert isinstance(received, FLModel) and received.params_type == ParamsType.FULL
    net.load_state_dict(received.params)
    before = copy.deepcopy(net)
    with torch.no_grad():
        for each in net.parameters():
            each += 2.0
    loss = PTFedProxLoss(mu=0.5)(net, before)
    assert loss.item() == 0.25 * 4 * 4  # four parameters
    meta = {FLMetaKey.NUM_STEPS_CURRENT_ROUND: 2}
    flare.log("loss", loss.item(), AnalyticsDataType.SCALAR)
    assert get_fedprox_mu(received) == 0.25
    answer = FLModel(ParamsType.FULL, net.state_dict(), metrics={"loss": loss.item()}, meta=meta)
    flare.send(answer)
tracking.shutdown()
"""


def test_a_script_of_nvflares_runs_as_it_is(jobs):
    settings = "train.alias=nvflare", "model.args.size=3", "workflow.args.fedprox_mu=0.25"
    run = jobs.run(FACE, *settings, model=MODEL).finished()
    assert [each.get("loss") for each in run.summary.metrics] == [4.0, 4.0, None]
    assert run.summary.warnings == []


def test_receive_is_none_in_other_ranks_than_the_first(monkeypatch):
    model = FLModel(params={})
    monkeypatch.setattr(alias.client, "receive", lambda *_: model)
    for is_first, received in ((True, model), (False, None)):
        monkeypatch.setattr(alias, "is_first_rank", lambda is_first=is_first: is_first)
        assert alias.client_names()["client"]["receive"]() is received


def test_a_model_without_fedprox_weight_is_refused():
    with pytest.raises(ValueError, match=r"set workflow\.args\.fedprox_mu"):
        alias.get_fedprox_mu(FLModel(params={}))


LEARNS = """
import nvflare.client as flare
from nvflare.app_common.np.constants import NPConstants

class Adds(flare.Learner):
    def train(self, model):
        model.params[NPConstants.NUMPY_KEY] += self.site.index + 1
        return flare.FLModel(params=model.params)
    def evaluate(self, model):
        return flare.FLModel(metrics={})
"""
BUILDS = """
import numpy
from nvflare.app_common.np.constants import NPConstants
def build():
    return {NPConstants.NUMPY_KEY: numpy.zeros(2)}
"""


def test_learners_and_factories_may_import_its_names(jobs):
    learner = 'train.learner="client:Adds"', "train.script=null", "train.alias=nvflare"
    run = jobs.run(LEARNS, *learner, model=BUILDS).finished()
    assert load_file(run.directory.final_model)["numpy_key"].tolist() == [3.0, 3.0]
    assert list(missing_modules(jobs.make(LEARNS, *learner, model=BUILDS))) == []


def test_what_the_alias_has_not_fails_with_a_sentence(jobs):
    run = jobs.run("import nvflare.app_opt.lightning", "train.alias=nvflare")
    assert "flstream has no nvflare.app_opt.lightning; docs/moving.md lists" in run.summary.error
