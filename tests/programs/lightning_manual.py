"""Train a LightningModule that steps two optimizers by hand."""
# steps: 12
# optimizer steps: 12 12
# needs: lightning
# slow

import warnings

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")


class Adversarial(lightning.LightningModule):
    """A tiny GAN under manual optimization."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
        self.critic = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 1))

    def training_step(self, batch, batch_index):
        (real,) = batch
        opt_c, opt_g = self.optimizers()
        fake = self.generator(torch.randn(len(real), 4))

        c_loss = self.critic(fake.detach()).mean() - self.critic(real).mean()
        opt_c.zero_grad()
        self.manual_backward(c_loss)
        opt_c.step()

        g_loss = -self.critic(fake).mean()
        opt_g.zero_grad()
        self.manual_backward(g_loss)
        opt_g.step()
        print("critic", repr(c_loss.item()), "generator", repr(g_loss.item()))

    def configure_optimizers(self):
        critic = torch.optim.SGD(self.critic.parameters(), lr=1e-2)
        return critic, torch.optim.Adam(self.generator.parameters(), lr=1e-3)


lightning.seed_everything(0, verbose=False)
trainer = lightning.Trainer(
    max_epochs=2,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
data = TensorDataset(torch.randn(72, 2) + 1.0)
trainer.fit(Adversarial(), DataLoader(data, batch_size=12, shuffle=True))
