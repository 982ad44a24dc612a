"""Search by an evolution strategy, a loop that shows no step of its own, and mark its steps."""
# steps: 12
# inferred: any

import torch
from torch import nn

try:
    from stepscope import step
except ImportError:

    def step():
        """Stands in where stepscope is not installed."""


torch.manual_seed(0)
x = torch.randn(32, 8)
y = x.sum(dim=1, keepdim=True)
model = nn.Linear(8, 1)
mean = nn.utils.parameters_to_vector(model.parameters()).detach()

with torch.no_grad():
    for generation in range(12):
        candidates = mean + 0.1 * torch.randn(10, len(mean))
        errors = []
        for candidate in candidates:
            nn.utils.vector_to_parameters(candidate, model.parameters())
            errors.append(nn.functional.mse_loss(model(x), y))
        order = torch.stack(errors).argsort()
        mean = candidates[order[:3]].mean(dim=0)
        print("best", repr(errors[int(order[0])].item()))
        step()
