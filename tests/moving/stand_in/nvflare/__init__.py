"""What scripts import, for a process without flstream: the reference's side of each call."""

import sys
import types

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


FLMetaKey = types.SimpleNamespace(NUM_STEPS_CURRENT_ROUND="NUM_STEPS_CURRENT_ROUND")
for _name, _names in {
    "apis": {},
    "apis.fl_constant": {"FLMetaKey": FLMetaKey},
    "app_opt": {},
    "app_opt.pt": {},
    "app_opt.pt.fedproxloss": {"PTFedProxLoss": PTFedProxLoss},
}.items():
    _module = types.ModuleType(f"nvflare.{_name}")
    vars(_module).update(_names, __path__=[])
    sys.modules[_module.__name__] = _module
