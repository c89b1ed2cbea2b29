"""Runs an epoch, and sends its seconds as a metric."""

from epochs import epoch

import flstream.client as flare

flare.init()
while flare.is_running():
    model = flare.receive()
    flare.send(flare.FLModel(params=model.params, metrics={"seconds": epoch()}))
