"""A small convolutional network, as a first program on images has it."""

import torch
from torch import Tensor, nn

GRID = 4


def block(channels_in: int, channels: int) -> nn.Sequential:
    """Halves the image."""
    return nn.Sequential(
        nn.Conv2d(channels_in, channels, 3, padding=1),
        nn.BatchNorm2d(channels),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
    )


class SimpleCNN(nn.Module):
    """Three convolution blocks and two linear layers; images of 8 pixels or more, any size."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.blocks = nn.Sequential(block(3, 32), block(32, 64), block(64, 128))
        self.pool = nn.AdaptiveAvgPool2d(GRID)
        self.hidden = nn.Linear(128 * GRID * GRID, 256)
        self.head = nn.Linear(256, classes)

    def forward(self, images: Tensor) -> Tensor:
        features = self.pool(self.blocks(images)).flatten(1)
        logits: Tensor = self.head(torch.relu(self.hidden(features)))
        return logits


def simple_cnn(size: int, classes: int) -> SimpleCNN:
    """For images of 8 pixels or more."""
    if size < 8:
        raise ValueError(f"images of {size} pixels are too small: --size 8 or more")
    return SimpleCNN(classes)
