"""Train a LightningModule, with validation, clipped gradients and a scheduler."""

import sys
import warnings

import lightning
import torch
from _digest import digest
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

DEVICE = sys.argv[1] if len(sys.argv) > 1 else "cpu"
warnings.filterwarnings("ignore")


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        layers = [nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten()]
        self.net = nn.Sequential(*layers, nn.Dropout(0.1), nn.Linear(8 * 36, 4))

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_index):
        x, y = batch
        loss = nn.functional.cross_entropy(self(x), y)
        print("loss", repr(loss.item()))
        return loss

    def validation_step(self, batch, batch_index):
        x, y = batch
        self.log("validation", nn.functional.cross_entropy(self(x), y))

    def on_validation_epoch_end(self):
        print("validation", repr(self.trainer.callback_metrics["validation"].item()))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]


lightning.seed_everything(0, verbose=False)
images, labels = torch.randn(56, 1, 6, 6), torch.randint(0, 4, (56,))
model = Classifier()
trainer = lightning.Trainer(
    max_epochs=2,
    accelerator="gpu" if DEVICE == "cuda" else "cpu",
    devices=1,
    gradient_clip_val=1.0,
    num_sanity_val_steps=0,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(
    model,
    DataLoader(TensorDataset(images[:46], labels[:46]), batch_size=8, shuffle=True),
    DataLoader(TensorDataset(images[46:], labels[46:]), batch_size=8),
)
print("weights", digest(model))
