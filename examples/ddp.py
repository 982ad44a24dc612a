"""A small network trained by DistributedDataParallel: NCCL with a GPU per rank, else gloo on the
CPU. `stepscope run --ranks 2 examples/ddp.py`, or torchrun in place of `--ranks`.

`--late 20` makes the last rank 20 ms late in backward; `--same-data` has all ranks read the same.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Late(torch.autograd.Function):
    """The identity; backward takes longer."""

    @staticmethod
    def forward(ctx, values, seconds):
        ctx.seconds = seconds
        return values.view_as(values)

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(ctx.seconds)
        return gradient, None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--late", type=float, default=0.0, help="ms")
    parser.add_argument("--same-data", action="store_true")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    local = int(os.environ.get("LOCAL_RANK", "0"))
    enough = torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    use_gpu = torch.cuda.is_available() and enough
    device = torch.device("cuda", local) if use_gpu else torch.device("cpu")
    dist.init_process_group("nccl" if use_gpu else "gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    late = arguments.late / 1000 if rank == ranks - 1 else 0.0

    count = arguments.steps * arguments.batch * (1 if arguments.same_data else ranks)
    data = TensorDataset(torch.randn(count, 256), torch.randint(0, 10, (count,)))
    sampler = None if arguments.same_data else DistributedSampler(data)
    loader = DataLoader(data, arguments.batch, sampler=sampler)
    layers = nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
    model = DistributedDataParallel(nn.Sequential(*layers).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    criterion = nn.CrossEntropyLoss()
    for step, (inputs, labels) in enumerate(loader):
        outputs = model(inputs.to(device))
        loss = criterion(Late.apply(outputs, late) if late else outputs, labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and (step + 1) % 50 == 0:
            print(f"step {step + 1} loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
