"""What NVFlare's server process is given: the model, and a listener that notes each round."""

# mypy: disable-error-code="import-not-found, misc"
# NVFlare is installed in an environment of its own, where types are not checked.

from __future__ import annotations

import torch
from journal import note_idle, note_round
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType
from nvflare.widgets.widget import Widget
from sums import zeros


class Exchanged(torch.nn.Module):
    """The model. NVFlare makes it in its server's process, right after the imports."""

    def __init__(self) -> None:
        super().__init__()
        note_idle()
        for name, tensor in zeros().items():
            self.register_parameter(name, torch.nn.Parameter(tensor, requires_grad=False))


class RoundListener(Widget):
    """Notes when the server begins a round."""

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Pass over everything else."""
        if event_type == AppEventType.ROUND_STARTED:
            note_round(fl_ctx.get_prop(AppConstants.CURRENT_ROUND) + 1)
