"""Central evaluation: the loss of each global model on text that no site trains on."""

from data import corpus, in_rows
from model import GPT

import flstream.client as flare

flare.init()
info = flare.system_info()
net = GPT(**info["model_args"])
rows = in_rows(corpus(info["clients"])[1], info["model_args"]["length"])[:200]

while flare.is_running():
    flare.receive(into=net)
    flare.send(flare.FLModel(metrics={"loss": net.score(rows)}))
