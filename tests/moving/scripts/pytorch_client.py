"""In the style of hello-pt: loader workers, a local checkpoint, and branches for other tasks."""

import nvflare.client as flare
import torch
from images import Images
from network import Network, accuracy
from nvflare.client.tracking import SummaryWriter
from torch.optim import SGD

LOCAL_MODEL = "./local_model.pt"


def main():
    flare.init()
    site = flare.get_site_name()
    net, loss = Network(), torch.nn.CrossEntropyLoss()
    optimizer = SGD(net.parameters(), lr=0.1, momentum=0.9)
    options = {"batch_size": 8, "num_workers": 2}
    train_loader = torch.utils.data.DataLoader(Images(site, 48), shuffle=True, **options)
    test_loader = torch.utils.data.DataLoader(Images("test", 32), **options)
    writer, last_params = SummaryWriter(), None
    while flare.is_running():
        received = flare.receive()
        if flare.is_submit_model():
            flare.send(flare.FLModel(params=last_params))
            continue
        net.load_state_dict(received.params)
        before = accuracy(net, test_loader)
        if flare.is_evaluate():
            flare.send(flare.FLModel(metrics={"accuracy": before}))
            continue
        net.train()
        total = 0.0
        for images, labels in train_loader:
            optimizer.zero_grad()
            cost = loss(net(images), labels)
            cost.backward()
            optimizer.step()
            total += cost.item()
        writer.add_scalar(tag="train_loss", scalar=total, global_step=received.current_round)
        last_params = {name: value.detach().clone() for name, value in net.state_dict().items()}
        torch.save(last_params, LOCAL_MODEL)
        answer = flare.FLModel(
            params=last_params,
            metrics={"accuracy": before},
            meta={"NUM_STEPS_CURRENT_ROUND": len(train_loader)},
        )
        flare.send(answer)


if __name__ == "__main__":
    main()
