"""Class by class, correct answers are counted on the host: a wait for the GPU each time."""

import torch
from torch import nn

CAUSE = "sync.item"
DEVICE = "cuda"
CLASSES = 48


def main():
    torch.manual_seed(0)
    layers = [layer for _ in range(40) for layer in (nn.Linear(1024, 1024), nn.ReLU())]
    model = nn.Sequential(*layers).cuda().bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    inputs = torch.rand(8192, 1024, device="cuda", dtype=torch.bfloat16)
    labels = torch.randint(CLASSES, (8192,), device="cuda")
    correct = 0
    for _ in range(80):
        output = model(inputs)
        right = output.argmax(1) == labels
        for number in range(CLASSES):
            correct += (right & (labels == number)).sum().item()
        loss = nn.functional.cross_entropy(output, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(correct)


if __name__ == "__main__":
    main()
