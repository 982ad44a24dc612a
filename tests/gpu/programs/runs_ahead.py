"""Launches far more than the device can do meanwhile, and ends without waiting for it."""

import atexit


@atexit.register  # before torch is imported, and so called after the observer has ended
def tell():
    """How long a step really took."""
    last.synchronize()
    print(first.elapsed_time(last) / 40)


import torch  # noqa: E402
from torch import nn  # noqa: E402

model = nn.Linear(8192, 8192, bias=False, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
inputs = torch.randn(8192, 8192, device="cuda")
first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
for step in range(60):
    if step == 20:
        first.record()
    loss = model(inputs).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
last.record()
