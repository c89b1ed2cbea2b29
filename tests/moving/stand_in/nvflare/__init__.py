"""What the scripts import, for a process without flstream: the reference's side of each call."""

import sys
import types


def _module(name, **names):
    module = types.ModuleType(name)
    module.__path__ = []
    vars(module).update(names)
    sys.modules[name] = module


def _constants(**values):
    return type("Constants", (), values)


def _fedprox():
    import torch

    class PTFedProxLoss(torch.nn.Module):
        def __init__(self, mu):
            super().__init__()
            self.mu = mu

        def forward(self, local, received):
            pairs = zip(local.named_parameters(), received.named_parameters(), strict=True)
            term = 0.0
            for (_, ours), (_, theirs) in pairs:
                term += (self.mu / 2) * torch.sum((ours - theirs) ** 2)
            return term

    return PTFedProxLoss


from nvflare.client import FLModel, ParamsType  # noqa: E402

for _each in (
    "apis",
    "app_common",
    "app_common.abstract",
    "app_common.np",
    "app_opt",
    "app_opt.pt",
):
    _module(f"nvflare.{_each}")
_module("nvflare.app_common.abstract.fl_model", FLModel=FLModel, ParamsType=ParamsType)
_module(
    "nvflare.app_common.app_constant",
    ModelName=_constants(BEST_MODEL="best_model"),
    AlgorithmConstants=_constants(SCAFFOLD_CTRL_GLOBAL="scaffold_c_global"),
)
_module("nvflare.app_common.np.constants", NPConstants=_constants(NUMPY_KEY="numpy_key"))
_module(
    "nvflare.apis.fl_constant",
    FLMetaKey=_constants(NUM_STEPS_CURRENT_ROUND="NUM_STEPS_CURRENT_ROUND"),
)
_module("nvflare.app_opt.pt.fedproxloss", PTFedProxLoss=_fedprox())
