"""Tuned: channels-last and bf16, with pinned batches from persistent workers."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CAUSE = "healthy"
DEVICE = "cuda"


def main():
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    data = TensorDataset(torch.rand(1280, 3, 64, 64), torch.randint(10, (1280,)))
    loader = DataLoader(
        data, batch_size=128, num_workers=4, pin_memory=True, persistent_workers=True
    )
    layers = [nn.Conv2d(3, 256, 3, padding=1), nn.ReLU()]
    for _ in range(8):
        layers += [nn.Conv2d(256, 256, 3, padding=1), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10))
    model = model.cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    for _ in range(8):
        for images, labels in loader:
            images = images.cuda(non_blocking=True).to(memory_format=torch.channels_last)
            labels = labels.cuda(non_blocking=True)
            with torch.autocast("cuda", torch.bfloat16):
                loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
