"""Train with an optimizer of one's own that clips gradients and calls super().step."""
# steps: 15
# optimizer steps: 15
# slow

import torch
from torch import nn


class ClippedSGD(torch.optim.SGD):
    """SGD that clips the gradients' norm to one before each step."""

    def step(self, closure=None):
        for group in self.param_groups:
            nn.utils.clip_grad_norm_(group["params"], 1.0)
        return super().step(closure)


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = ClippedSGD(model.parameters(), lr=0.05)

for _ in range(15):
    x = torch.randn(16, 8)
    loss = nn.functional.mse_loss(model(x), x.sum(dim=1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", repr(loss.item()))
