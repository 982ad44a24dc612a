"""Two ranks of DDP over gloo: started by a launcher, or forked by the program itself. Each prints
its losses to the bit. With an argument, rank 1 is slow in backward by so many seconds."""

import multiprocessing
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

STEPS, BATCH = 40, 4
slow_s = float(sys.argv[1]) if len(sys.argv) > 1 else 0.0


class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(slow_s if dist.get_rank() == 1 else 0.0)
        return gradient


def train(**group):
    torch.manual_seed(0)
    dist.init_process_group("gloo", **group)
    data = TensorDataset(torch.randn(2 * BATCH * STEPS, 8), torch.randn(2 * BATCH * STEPS, 1))
    loader = DataLoader(data, BATCH, sampler=DistributedSampler(data))
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 1), torch.nn.Tanh()))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for inputs, targets in loader:
        loss = torch.nn.functional.mse_loss(Slow.apply(model(inputs)), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item().hex())
    total = loss.detach().clone()
    dist.all_reduce(total)
    dist.barrier()  # else gloo's thread may still hold `total`, and torch 2.13 hangs at its end
    sys.stdout.write(f"{dist.get_rank()} {total.item().hex()} {' '.join(losses)}\n")
    sys.stdout.flush()
    dist.destroy_process_group()


def main():
    if "RANK" in os.environ:
        train()
        return
    forks, meeting = multiprocessing.get_context("fork"), Path("group").absolute()
    meeting.unlink(missing_ok=True)
    group = {"init_method": f"file://{meeting}", "world_size": 2}
    ranks = [forks.Process(target=train, kwargs={**group, "rank": n}) for n in range(2)]
    for one in ranks:
        one.start()
    for one in ranks:
        one.join()
    sys.exit(max(one.exitcode for one in ranks))


if __name__ == "__main__":
    main()
