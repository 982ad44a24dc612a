"""Train a Wasserstein GAN in a flat loop: the critic always, the generator every fifth time."""
# slow
# steps: 25
# optimizer steps: 25 5

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(200, 2) + 1.0), batch_size=8, shuffle=True)
generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
critic = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 1))
opt_g = torch.optim.RMSprop(generator.parameters(), lr=5e-4)
opt_c = torch.optim.RMSprop(critic.parameters(), lr=5e-4)

for i, (real,) in enumerate(loader):
    opt_c.zero_grad()
    fake = generator(torch.randn(len(real), 4)).detach()
    c_loss = critic(fake).mean() - critic(real).mean()
    c_loss.backward()
    opt_c.step()
    with torch.no_grad():
        for weight in critic.parameters():
            weight.clamp_(-0.1, 0.1)
    print("critic", repr(c_loss.item()))

    if (i + 1) % 5 == 0:
        opt_g.zero_grad()
        g_loss = -critic(generator(torch.randn(len(real), 4))).mean()
        g_loss.backward()
        opt_g.step()
        print("generator", repr(g_loss.item()))
