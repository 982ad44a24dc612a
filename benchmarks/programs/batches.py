"""A plain training loop whose loader only hands out indices: the samples lie on the device.

python batches.py --model resnet50 --device cuda                  as a user would run it
python batches.py --model resnet50 --device cuda --batch 256 --steps 30 --time    says samples/s
"""

import argparse
import time
from typing import Any

import torch
from torch.utils.data import DataLoader

EPOCH = 65_536
DISTINCT = 256
WARM_UP = 10


def build(name: str) -> tuple[Any, int]:
    """A model and the side of its images."""
    if name == "small":
        layers = torch.nn.Conv2d(3, 8, 3, stride=2), torch.nn.ReLU(), torch.nn.Flatten()
        return torch.nn.Sequential(*layers, torch.nn.Linear(8 * 15 * 15, 10)), 32
    import torchvision

    return getattr(torchvision.models, name)(), 224


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--time", action="store_true", help="print samples/s of the steady steps")
    options = parser.parse_args()
    torch.manual_seed(0)
    device = torch.device(options.device)
    model, side = build(options.model)
    model = model.to(device).train()
    images = torch.randn(DISTINCT, 3, side, side, device=device)
    labels = torch.randint(0, 10, (DISTINCT,), device=device)
    loader = DataLoader(range(EPOCH), batch_size=options.batch, shuffle=True, drop_last=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    made, begun = 0, 0.0
    while made < options.steps:
        for indices in loader:
            chosen = indices.to(device) % DISTINCT
            optimizer.zero_grad()
            with torch.autocast(device.type, torch.bfloat16):
                loss = torch.nn.functional.cross_entropy(model(images[chosen]), labels[chosen])
            loss.backward()
            optimizer.step()
            made += 1
            if options.time and made == WARM_UP:
                wait(device)
                begun = time.perf_counter()
            if made == options.steps:
                break
    if options.time:
        wait(device)
        took = time.perf_counter() - begun
        print(f"{(made - WARM_UP) * options.batch / took:.1f}")


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
