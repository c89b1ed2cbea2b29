"""Inner steps as one loop, whose momentum, schedule, random numbers and data go on."""

import torch
from model import Net, accuracy, loss_of, move_buffers, targets

import flstream.client as flare


class Turns:
    """A count that stands for the place in a site's data."""

    def __init__(self):
        self.done = 0

    def state_dict(self):
        return {"done": self.done}

    def load_state_dict(self, state):
        self.done = state["done"]


flare.init()
info = flare.system_info()
net, turns = Net(**info["model_args"]), Turns()
aims = targets(net, info["site_index"])
optimizer = torch.optim.SGD(net.parameters(), lr=0.125, momentum=0.5)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
steps = flare.outer_steps(
    net,
    optimizer,
    inner_steps=3,
    examples=3 + info["site_index"],
    evaluate=lambda net: {"accuracy": accuracy(net, aims)},
    schedule=schedule,
    turns=turns,
)
for step in steps:
    loss_of(net, aims).backward()
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
    move_buffers(net, turns.done + step)
    turns.done = (turns.done + 1 + info["site_index"]) % 7
    steps.report(turns=turns.done)
