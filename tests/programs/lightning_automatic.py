"""Train a LightningModule that leaves the optimization to Lightning."""
# steps: 12
# needs: lightning

import warnings

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")


class Regression(lightning.LightningModule):
    """A two-layer regression."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))

    def training_step(self, batch, batch_index):
        x, y = batch
        loss = nn.functional.mse_loss(self.net(x), y)
        print("loss", repr(loss.item()))
        return loss

    def validation_step(self, batch, batch_index):
        x, y = batch
        print("validation", repr(nn.functional.mse_loss(self.net(x), y).item()))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-2)


lightning.seed_everything(0, verbose=False)
inputs = torch.randn(72, 8)
data = TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))
trainer = lightning.Trainer(
    max_epochs=2,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(
    Regression(),
    DataLoader(data, batch_size=12, shuffle=True),
    DataLoader(data, batch_size=36),
)
