"""In the style of the tracking examples: a value for each step, with a step count of its own."""

import nvflare.client as flare
import torch
from images import Images
from network import Network
from nvflare.client.tracking import SummaryWriter


def main():
    flare.init()
    site = flare.get_site_name()
    net, loss = Network(), torch.nn.CrossEntropyLoss()
    loader = torch.utils.data.DataLoader(Images(site, 24), batch_size=8, shuffle=True)
    writer = SummaryWriter()
    while flare.is_running():
        received = flare.receive()
        net.load_state_dict(received.params)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        net.train()
        for place, (images, labels) in enumerate(loader):
            optimizer.zero_grad()
            cost = loss(net(images), labels)
            cost.backward()
            optimizer.step()
            step = received.current_round * len(loader) + place
            writer.add_scalar("loss", cost.item(), global_step=step)
            writer.add_scalars("norm", {"bias": net.fc.bias.norm().item()}, global_step=step)
        flare.log("round_done", float(received.current_round))
        flare.send(flare.FLModel(params=net.state_dict(), metrics={"steps": len(loader)}))


if __name__ == "__main__":
    main()
