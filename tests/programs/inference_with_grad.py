"""Score samples one by one with a model, having forgotten no_grad."""
# steps: 20
# inferred

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))

for sample in torch.randn(20, 1, 8):
    score = model(sample)
    print("score", repr(score.item()))
