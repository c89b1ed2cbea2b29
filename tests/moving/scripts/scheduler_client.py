"""In the style of the CIFAR-10 examples: a scheduler, no question which task it is, no guard."""

import os

import nvflare.client as flare
import torch
from images import Images
from network import Network, accuracy
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.app_constant import ModelName

net = Network()
loss = torch.nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
best = 0.0

flare.init()
site = flare.get_site_name()
count = 32 if site == "site-1" else 64
train_loader = torch.utils.data.DataLoader(Images(site, count), batch_size=8, shuffle=True)
test_loader = torch.utils.data.DataLoader(Images("test", 32), batch_size=32)
while flare.is_running():
    received = flare.receive()
    net.load_state_dict(received.params)
    score = accuracy(net, test_loader)
    if score >= best:
        best = score
        torch.save(net.state_dict(), f"{ModelName.BEST_MODEL}.pt")
    assert os.path.exists(f"{ModelName.BEST_MODEL}.pt")
    net.train()
    for images, labels in train_loader:
        optimizer.zero_grad()
        loss(net(images), labels).backward()
        optimizer.step()
    scheduler.step()
    steps = len(train_loader)
    sent = FLModel(
        params_type=ParamsType.FULL,
        params=net.cpu().state_dict(),
        metrics={"accuracy": score},
        meta={"NUM_STEPS_CURRENT_ROUND": steps},
    )
    flare.send(sent)
