"""In the style of the FedProx examples: the loss pulls towards the received model."""

import copy

import nvflare.client as flare
import torch
from images import Images
from network import Network, accuracy
from nvflare.apis.fl_constant import FLMetaKey
from nvflare.app_common.app_constant import AlgorithmConstants
from nvflare.app_opt.pt.fedproxloss import PTFedProxLoss


def main():
    flare.init()
    site = flare.system_info()["site_name"]
    net = Network()
    loss, proximal = torch.nn.CrossEntropyLoss(), PTFedProxLoss(mu=0.1)
    train_loader = torch.utils.data.DataLoader(Images(site, 48), batch_size=8, shuffle=True)
    test_loader = torch.utils.data.DataLoader(Images("test", 32), batch_size=32)
    while flare.is_running():
        received = flare.receive()
        assert AlgorithmConstants.SCAFFOLD_CTRL_GLOBAL not in received.meta
        net.load_state_dict(received.params)
        origin = copy.deepcopy(net)
        for parameter in origin.parameters():
            parameter.requires_grad = False
        score = accuracy(net, test_loader)
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
        net.train()
        for images, labels in train_loader:
            optimizer.zero_grad()
            (loss(net(images), labels) + proximal(net, origin)).backward()
            optimizer.step()
        answer = flare.FLModel(
            params=net.state_dict(),
            metrics={"accuracy": score},
            meta={FLMetaKey.NUM_STEPS_CURRENT_ROUND: len(train_loader)},
        )
        flare.send(answer)


if __name__ == "__main__":
    main()
