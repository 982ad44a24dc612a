"""One rank of a program started by torch.distributed.run: all-reduce over gloo, a step, and out."""

import os
import sys

import torch
import torch.distributed

torch.distributed.init_process_group("gloo")
rank = torch.tensor([float(os.environ["RANK"])])
torch.distributed.all_reduce(rank)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(4, 2)).mean().backward()
optimizer.step()
print("sum of ranks", rank.item(), flush=True)
torch.distributed.destroy_process_group()
sys.exit(0)
