"""What each site of NVFlare runs: jobs/exchange/client.py, but for the import."""

# mypy: disable-error-code="import-not-found"

import nvflare.client as flare
import torch
from sums import add

flare.init()
number = int(flare.get_site_name().removeprefix("site-"))

while flare.is_running():
    model = flare.receive()
    # With NumPy as the exchange format, arrays come; the tensors made of them share their memory.
    add({name: torch.as_tensor(value) for name, value in model.params.items()}, number)
    flare.send(flare.FLModel(params=model.params))
