"""A whole training step captured once in a CUDA graph and replayed."""

import torch
from torch import nn

torch.manual_seed(0)
inputs = torch.randn(64, 128, device="cuda")
model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 1)).cuda()
optimizer = torch.optim.Adam(model.parameters(), capturable=True)


def train():
    optimizer.zero_grad(set_to_none=True)
    loss = model(inputs).square().mean()
    loss.backward()
    optimizer.step()
    return loss


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        train()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = train()
for _ in range(20):
    graph.replay()
print("loss", repr(loss.item()))
