"""In the style of NVFlare's hello-lightning: validate, fit, test and predict, each task."""

import argparse

import nvflare.client.lightning as flare
import torch
from lit_model import LitNet
from pytorch_lightning import LightningDataModule, Trainer, seed_everything
from torch.utils.data import DataLoader, TensorDataset, random_split

seed_everything(7)


class PointsDataModule(LightningDataModule):
    def __init__(self, site, batch_size):
        super().__init__()
        self.site = site
        self.batch_size = batch_size

    def setup(self, stage):
        draw = torch.Generator().manual_seed(sum(map(ord, self.site)))
        x = torch.randn(72, 12, generator=draw)
        points = TensorDataset(x, x[:, :3].argmax(1))
        self.train, self.val, self.test = random_split(points, [40, 16, 16], draw)

    def train_dataloader(self):
        return DataLoader(self.train, batch_size=self.batch_size, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.val, batch_size=self.batch_size)

    def test_dataloader(self):
        return DataLoader(self.test, batch_size=self.batch_size)

    def predict_dataloader(self):
        return DataLoader(self.test, batch_size=self.batch_size)


def define_parser():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=2)
    return parser.parse_args()


def main():
    args = define_parser()
    flare.init()
    print(f"batch_size={args.batch_size}, site={flare.get_site_name()}")

    model = LitNet()
    data = PointsDataModule(flare.get_site_name(), args.batch_size)
    trainer = Trainer(max_epochs=args.epochs, accelerator="auto", devices="auto")
    flare.patch(trainer)

    while flare.is_running():
        input_model = flare.receive()
        print(f"\n[Current Round={input_model.current_round}, Site = {flare.get_site_name()}]\n")

        print("--- validate global model ---")
        trainer.validate(model, datamodule=data)

        print("--- train new model ---")
        trainer.fit(model, datamodule=data)

        print("--- test new model ---")
        trainer.test(ckpt_path="best", datamodule=data)

        print("--- prediction with new best model ---")
        trainer.predict(ckpt_path="best", datamodule=data)


if __name__ == "__main__":
    main()
