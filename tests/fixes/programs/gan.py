"""Train a generator and a discriminator in turn, each with an optimizer of its own."""

import sys

import torch
from _digest import digest
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

DEVICE = sys.argv[1] if len(sys.argv) > 1 else "cpu"

torch.manual_seed(0)
generator = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2)).to(
    DEVICE
)
discriminator = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1)).to(DEVICE)
generator_optimizer = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.999))
discriminator_optimizer = torch.optim.Adam(discriminator.parameters(), lr=1e-3, betas=(0.5, 0.999))
criterion = nn.BCEWithLogitsLoss()
loader = DataLoader(TensorDataset(torch.randn(46, 2) + 2), batch_size=8, shuffle=True)
for _ in range(2):
    for (real,) in loader:
        real = real.to(DEVICE)
        ones, zeros = (
            torch.ones(len(real), 1, device=DEVICE),
            torch.zeros(len(real), 1, device=DEVICE),
        )
        fake = generator(torch.randn(len(real), 4, device=DEVICE))

        discriminator_optimizer.zero_grad()
        loss = criterion(discriminator(real), ones) + criterion(discriminator(fake.detach()), zeros)
        loss.backward()
        discriminator_optimizer.step()

        generator_optimizer.zero_grad()
        fooled = criterion(discriminator(fake), ones)
        fooled.backward()
        generator_optimizer.step()
        print("loss", repr(loss.item()))
        print("loss", repr(fooled.item()))
print("weights", digest(generator, discriminator))
