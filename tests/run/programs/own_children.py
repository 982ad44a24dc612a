"""Train a little, and so do processes started in three ways; exit with 5."""

import multiprocessing
import subprocess
import sys


def train(by_hand=True):
    """The last of three losses. Children update by hand: an optimizer imports for seconds."""
    import torch

    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = None if by_hand else torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        loss = model(torch.randn(8, 4)).square().mean()
        model.zero_grad()
        loss.backward()
        if optimizer is not None:
            optimizer.step()
            continue
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(parameter.grad, alpha=-0.1)
    return loss.item()


def work(rank):
    print("spawn", train(), flush=True)


if __name__ == "__main__":
    name = "main" if len(sys.argv) == 1 else sys.argv[1]
    print(name, train(by_hand=name != "main"), flush=True)
    if name == "main":
        import torch.multiprocessing

        subprocess.run([sys.executable, __file__, "subprocess"], check=True)
        torch.multiprocessing.spawn(work, nprocs=1)
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            print("pool", pool.apply(train))
        sys.exit(5)
