"""Call model.compile() on a model whose forward breaks the graph once."""
# steps: 15
# compile: graphs graph_breaks
# slow

import _counters  # noqa: F401
import torch
from torch import nn


class Gated(nn.Module):
    """Looks at its activations from Python, as debugging code left behind does."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.second = nn.Linear(16, 1)

    def forward(self, x):
        hidden = torch.relu(self.first(x))
        if hidden.sum().item() == 0:
            hidden = hidden + 1
        return self.second(hidden)


torch.manual_seed(0)
model = Gated()
model.compile(backend="eager")
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

for _ in range(15):
    x = torch.randn(16, 8)
    loss = (model(x).squeeze(1) - x.sum(dim=1)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", repr(loss.item()))
