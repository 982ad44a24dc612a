"""U-Net: an image to a class for each of its pixels."""

from itertools import pairwise

import torch
from torch import Tensor, nn

WIDTHS = (64, 128, 256, 512, 1024)
FACTOR = 2 ** (len(WIDTHS) - 1)


def two_convolutions(channels_in: int, channels: int) -> nn.Sequential:
    """Keeps the size of the image."""
    return nn.Sequential(
        nn.Conv2d(channels_in, channels, 3, padding=1, bias=False),
        nn.BatchNorm2d(channels),
        nn.ReLU(inplace=True),
        nn.Conv2d(channels, channels, 3, padding=1, bias=False),
        nn.BatchNorm2d(channels),
        nn.ReLU(inplace=True),
    )


class Up(nn.Module):
    """Doubles the image and joins what the way down knew at that size."""

    def __init__(self, channels_in: int, channels: int) -> None:
        super().__init__()
        self.enlarge = nn.ConvTranspose2d(channels_in, channels, 2, stride=2)
        self.merge = two_convolutions(2 * channels, channels)

    def forward(self, x: Tensor, skipped: Tensor) -> Tensor:
        merged: Tensor = self.merge(torch.cat((skipped, self.enlarge(x)), dim=1))
        return merged


class UNet(nn.Module):
    """Images [N, 3, size, size] → logits [N, classes, size, size]; size a multiple of 16."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.entry = two_convolutions(3, WIDTHS[0])
        self.down = nn.ModuleList(
            nn.Sequential(nn.MaxPool2d(2), two_convolutions(a, b)) for a, b in pairwise(WIDTHS)
        )
        self.up = nn.ModuleList(Up(b, a) for a, b in reversed(list(pairwise(WIDTHS))))
        self.head = nn.Conv2d(WIDTHS[0], classes, 1)

    def forward(self, images: Tensor) -> Tensor:
        x = self.entry(images)
        skipped = []
        for down in self.down:
            skipped.append(x)
            x = down(x)
        for up in self.up:
            x = up(x, skipped.pop())
        logits: Tensor = self.head(x)
        return logits


def unet(size: int, classes: int) -> UNet:
    """Four blocks down and four up."""
    if size < 2 * FACTOR or size % FACTOR:
        raise ValueError(f"--size {size} is not a multiple of {FACTOR} from {2 * FACTOR} up")
    return UNet(classes)
