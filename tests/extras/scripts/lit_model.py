"""A model in the style of NVFlare's hello-lightning, small."""

import torch
from pytorch_lightning import LightningModule
from torch import nn
from torch.nn.functional import cross_entropy


class LitNet(LightningModule):
    def __init__(self):
        super().__init__()
        self.save_hyperparameters()
        self.model = nn.Sequential(
            nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3)
        )
        self.__fl_meta__ = {}

    def forward(self, x):
        return self.model(x)

    def training_step(self, batch, batch_idx):
        x, labels = batch
        loss = cross_entropy(self(x), labels)
        self.log("train_loss", loss)
        return loss

    def evaluate(self, batch, stage=None):
        x, labels = batch
        outputs = self(x)
        if stage:
            self.log(f"{stage}_loss", cross_entropy(outputs, labels))
            self.log(f"{stage}_acc", (outputs.argmax(1) == labels).float().mean())
        return outputs

    def validation_step(self, batch, batch_idx):
        self.evaluate(batch, "val")

    def test_step(self, batch, batch_idx):
        self.evaluate(batch, "test")

    def predict_step(self, batch, batch_idx, dataloader_idx=0):
        return self.evaluate(batch)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
        return {"optimizer": optimizer, "lr_scheduler": schedule}
