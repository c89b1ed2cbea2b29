"""In the style of hello-pt: flags, loader workers, tracking, local files."""

import argparse

import nvflare.client as flare
import torch
from network import Network, points
from nvflare.apis.fl_constant import FLMetaKey
from nvflare.client.tracking import SummaryWriter

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=1.0)
parser.add_argument("--shuffle", action="store_true")
parser.add_argument("--sizes", type=int, nargs="+", default=[8])
parser.add_argument("--title", default="none")
args = parser.parse_args()
assert args.title == "two words", args


def main():
    flare.init()
    site = flare.get_site_name()
    net, loss = Network(), torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=args.lr, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    writer, test = SummaryWriter(), points("test", 32)
    while flare.is_running():
        received = flare.receive()
        net.load_state_dict(received.params)
        with torch.no_grad():
            right = net.eval()(test.tensors[0]).argmax(1) == test.tensors[1]
        metrics = {"accuracy": right.float().mean().item()}
        if flare.is_evaluate():
            flare.send(flare.FLModel(metrics=metrics))
            continue
        steps = 0
        net.train()
        for size in args.sizes:
            loader = torch.utils.data.DataLoader(
                points(site, 24), batch_size=size, shuffle=args.shuffle, num_workers=1
            )
            for batch, labels in loader:
                optimizer.zero_grad()
                cost = loss(net(batch), labels)
                cost.backward()
                optimizer.step()
                steps += 1
            writer.add_scalar(tag="loss", scalar=cost.item(), global_step=received.current_round)
            writer.add_scalars("norm", {"bias": net[0].bias.norm().item()}, global_step=size)
        scheduler.step()
        flare.log("round_done", float(received.current_round))
        last = {name: value.detach().clone() for name, value in net.state_dict().items()}
        torch.save(last, "./local_model.pt")
        meta = {FLMetaKey.NUM_STEPS_CURRENT_ROUND: steps}
        flare.send(flare.FLModel(params=last, metrics=metrics, meta=meta))


if __name__ == "__main__":
    main()
