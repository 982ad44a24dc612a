"""Convolutional networks: ResNets, EfficientNet-B0 and U-Net. Parameters of the first two are named
as in torchvision, so that its weights load.
"""

import math
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn


class Basic(nn.Module):
    """Two 3×3 convolutions beside a shortcut."""

    widening = 1

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = convolution(channels_in, channels, 3, stride)
        self.relu = nn.ReLU(inplace=True)
        self.conv2, self.bn2 = convolution(channels, channels, 3)
        self.downsample = shortcut(channels_in, channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        y += x if self.downsample is None else self.downsample(x)
        return self.relu(y)


class Bottleneck(nn.Module):
    """1×1, 3×3 and 1×1 convolutions beside a shortcut; the stride is in the 3×3 one."""

    widening = 4

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        wide = self.widening * channels
        self.conv1, self.bn1 = convolution(channels_in, channels, 1)
        self.conv2, self.bn2 = convolution(channels, channels, 3, stride)
        self.conv3, self.bn3 = convolution(channels, wide, 1)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = shortcut(channels_in, wide, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        y += x if self.downsample is None else self.downsample(x)
        return self.relu(y)


def convolution(
    channels_in: int, channels: int, kernel: int, stride: int = 1, groups: int = 1
) -> list[nn.Module]:
    """A convolution that keeps the size (over its stride) and its normalization."""
    padding = kernel // 2
    layer = nn.Conv2d(channels_in, channels, kernel, stride, padding, groups=groups, bias=False)
    return [layer, nn.BatchNorm2d(channels)]


def shortcut(channels_in: int, channels: int, stride: int) -> nn.Sequential | None:
    """A projection; None if the block's input can be added unchanged."""
    if stride == 1 and channels_in == channels:
        return None
    return nn.Sequential(*convolution(channels_in, channels, 1, stride))


class ResNet(nn.Module):
    """Images [N, 3, size, size] → logits [N, classes], with the stem made for ImageNet."""

    def __init__(self, block: Any, depths: tuple[int, int, int, int], classes: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = convolution(3, 64, 7, 2)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        wide = 64
        for stage, (channels, depth) in enumerate(zip((64, 128, 256, 512), depths, strict=True)):
            first = block(wide, channels, 1 if stage == 0 else 2)
            wide = block.widening * channels
            rest = (block(wide, channels, 1) for _ in range(depth - 1))
            self.add_module(f"layer{stage + 1}", nn.Sequential(first, *rest))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(wide, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.avgpool(x).flatten(1))


def resnet18(classes: int) -> ResNet:
    return ResNet(Basic, (2, 2, 2, 2), classes)


def resnet50(classes: int) -> ResNet:
    return ResNet(Bottleneck, (3, 4, 6, 3), classes)


STAGES = (
    (1, 3, 1, 32, 16, 1),  # expansion, kernel, stride, channels in, channels out, blocks
    (6, 3, 2, 16, 24, 2),
    (6, 5, 2, 24, 40, 2),
    (6, 3, 2, 40, 80, 3),
    (6, 5, 1, 80, 112, 3),
    (6, 5, 2, 112, 192, 4),
    (6, 3, 1, 192, 320, 1),
)
DROPPED_BLOCKS = 0.2
DROPOUT = 0.2


class Squeeze(nn.Module):
    """Scales each channel by a weight computed from the whole image."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc1 = nn.Conv2d(channels, squeezed, 1)
        self.fc2 = nn.Conv2d(squeezed, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        squeezed = nn.functional.silu(self.fc1(self.avgpool(x)))
        return x * torch.sigmoid(self.fc2(squeezed))


class DropSamples(nn.Module):
    """In training, zeroes whole samples at random and scales up the others."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.kept = 1 - probability

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.kept == 1:
            return x
        kept = x.new_empty(x.shape[0], 1, 1, 1).bernoulli_(self.kept)
        return x * kept.div_(self.kept)


class InvertedBottleneck(nn.Module):
    """Expands, convolves each channel separately, weights channels, and projects back."""

    def __init__(
        self, expansion: int, kernel: int, stride: int, channels_in: int, channels: int, drop: float
    ) -> None:
        super().__init__()
        wide = expansion * channels_in
        layers: list[nn.Module] = []
        if expansion != 1:
            layers += [nn.Sequential(*convolution(channels_in, wide, 1), nn.SiLU(inplace=True))]
        depthwise = convolution(wide, wide, kernel, stride, groups=wide)
        layers += [nn.Sequential(*depthwise, nn.SiLU(inplace=True))]
        layers += [Squeeze(wide, channels_in // 4), nn.Sequential(*convolution(wide, channels, 1))]
        self.block = nn.Sequential(*layers)
        self.residual = stride == 1 and channels_in == channels
        self.stochastic_depth = DropSamples(drop)

    def forward(self, x: Tensor) -> Tensor:
        y = self.block(x)
        return self.stochastic_depth(y) + x if self.residual else y


class EfficientNet(nn.Module):
    """B0: images [N, 3, size, size] → logits [N, classes]. Later blocks are dropped more often in
    training."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        stem = nn.Sequential(*convolution(3, 32, 3, stride=2), nn.SiLU(inplace=True))
        last = nn.Sequential(*convolution(320, 1280, 1), nn.SiLU(inplace=True))
        total, done, stages = sum(stage[-1] for stage in STAGES), 0, []
        for expansion, kernel, stride, channels_in, channels, blocks in STAGES:
            layers = []
            for index in range(blocks):
                entering, step = (channels_in, stride) if index == 0 else (channels, 1)
                drop = DROPPED_BLOCKS * done / total
                layers.append(InvertedBottleneck(expansion, kernel, step, entering, channels, drop))
                done += 1
            stages.append(nn.Sequential(*layers))
        self.features = nn.Sequential(stem, *stages, last)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(nn.Dropout(DROPOUT, inplace=True), nn.Linear(1280, classes))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out")
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        bound = 1 / math.sqrt(classes)
        nn.init.uniform_(self.classifier[1].weight, -bound, bound)
        nn.init.zeros_(self.classifier[1].bias)

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.avgpool(self.features(images)).flatten(1))


WIDTHS = (64, 128, 256, 512, 1024)
FACTOR = 2 ** (len(WIDTHS) - 1)


def two_convolutions(channels_in: int, channels: int) -> nn.Sequential:
    first, second = convolution(channels_in, channels, 3), convolution(channels, channels, 3)
    return nn.Sequential(*first, nn.ReLU(inplace=True), *second, nn.ReLU(inplace=True))


class Up(nn.Module):
    """Upsamples by two and concatenates the encoder's features of that size."""

    def __init__(self, channels_in: int, channels: int) -> None:
        super().__init__()
        self.enlarge = nn.ConvTranspose2d(channels_in, channels, 2, stride=2)
        self.merge = two_convolutions(2 * channels, channels)

    def forward(self, x: Tensor, skipped: Tensor) -> Tensor:
        return self.merge(torch.cat((skipped, self.enlarge(x)), dim=1))


class UNet(nn.Module):
    """Images [N, 3, size, size] → logits [N, classes, size, size]; size a multiple of 16."""

    def __init__(self, size: int, classes: int) -> None:
        super().__init__()
        if size < 2 * FACTOR or size % FACTOR:
            raise ValueError(f"--size {size} is not a multiple of {FACTOR} from {2 * FACTOR} up")
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
        return self.head(x)
