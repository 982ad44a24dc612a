"""One training step in the steady state, either recorded by torch.profiler or marked for ncu.

python one_step.py resnet50 --record trace.json     a Kineto trace of the step, with shapes
ncu --profile-from-start off … python one_step.py resnet50     counters of the same step
"""

import argparse
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

for folder in ("examples", "src"):
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / folder))
WARM_STEPS = 4


def resnet50(batch: int) -> Callable[[], Any]:
    """A step of torchvision's ResNet-50 in fp32, as PyTorch comes: TF32 in convolutions."""
    import torchvision

    model = torchvision.models.resnet50(weights=None).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    images = torch.randn(batch, 3, 224, 224, device="cuda")
    labels = torch.randint(0, 1000, (batch,), device="cuda")
    criterion = nn.CrossEntropyLoss()

    def step() -> None:
        loss = criterion(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def decoder(batch: int) -> Callable[[], Any]:
    """A step of the example decoder in bf16, four blocks deep: ncu runs each kernel many times."""
    model = import_module("decoder").Decoder(32768, 768, 12, 4, 1024).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    tokens = torch.randint(0, 32768, (batch, 1025), device="cuda")

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(tokens[:, :-1])
            loss = nn.functional.cross_entropy(logits.reshape(-1, 32768), tokens[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=("resnet50", "decoder"))
    parser.add_argument("--batch", type=int)
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    torch.manual_seed(0)
    make = {"resnet50": resnet50, "decoder": decoder}[options.model]
    step = make(options.batch or {"resnet50": 64, "decoder": 4}[options.model])
    for _ in range(WARM_STEPS):
        step()
    torch.cuda.synchronize()
    import_module("stepscope.workloads.one_step").observe(step, options.record)


if __name__ == "__main__":
    main()
