"""Keep a moving average of the weights in a deep copy taken during training."""
# steps: 15
# slow

import copy

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
average = None
probe = torch.randn(4, 8)

for i in range(15):
    x = torch.randn(16, 8)
    loss = nn.functional.mse_loss(model(x), x.sum(dim=1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", repr(loss.item()))
    if i == 4:
        average = copy.deepcopy(model).eval().requires_grad_(False)
    elif average is not None:
        with torch.no_grad():
            for mean, new in zip(average.parameters(), model.parameters(), strict=True):
                mean.lerp_(new, 0.1)
            print("average", average(probe).flatten().tolist())

assert average is not None
print(sorted(vars(average)) == sorted(vars(nn.Sequential())), list(average.state_dict()))
