"""Step one optimizer per parameter inside backward, so that no gradient outlives its use."""
# steps: 15
# optimizer steps: any

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
optimizers = {p: torch.optim.Adam([p], lr=1e-2) for p in model.parameters()}


def step_and_free(parameter):
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()


for parameter in model.parameters():
    parameter.register_post_accumulate_grad_hook(step_and_free)

for _ in range(15):
    x = torch.randn(16, 8)
    loss = nn.functional.cross_entropy(model(x), x[:, :4].argmax(dim=1))
    loss.backward()
    print("loss", repr(loss.item()))
