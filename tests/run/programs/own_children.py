"""Train a little, and so do processes started in three ways; exit with 5."""

import multiprocessing
import subprocess
import sys


def train():
    import torch
    from torch import nn

    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        loss = model(torch.randn(8, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def work(rank):
    print("spawn", train(), flush=True)


if __name__ == "__main__":
    name = "main" if len(sys.argv) == 1 else sys.argv[1]
    print(name, train(), flush=True)
    if name == "main":
        import torch.multiprocessing

        subprocess.run([sys.executable, __file__, "subprocess"], check=True)
        torch.multiprocessing.spawn(work, nprocs=1)
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            print("pool", pool.apply(train))
        sys.exit(5)
