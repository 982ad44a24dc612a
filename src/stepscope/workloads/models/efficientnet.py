"""EfficientNet-B0; parameters are named as torchvision names them, so that its weights load."""

import math

import torch
from torch import Tensor, nn

# Expansion, kernel, stride, channels in, channels out, blocks.
STAGES = (
    (1, 3, 1, 32, 16, 1),
    (6, 3, 2, 16, 24, 2),
    (6, 5, 2, 24, 40, 2),
    (6, 3, 2, 40, 80, 3),
    (6, 5, 1, 80, 112, 3),
    (6, 5, 2, 112, 192, 4),
    (6, 3, 1, 192, 320, 1),
)
DROPPED_BLOCKS = 0.2
DROPOUT = 0.2


def convolution(
    channels_in: int, channels: int, kernel: int, stride: int = 1, groups: int = 1
) -> list[nn.Module]:
    """A convolution that keeps the size (over its stride) and its normalization."""
    padding = kernel // 2
    return [
        nn.Conv2d(channels_in, channels, kernel, stride, padding, groups=groups, bias=False),
        nn.BatchNorm2d(channels),
    ]


class Squeeze(nn.Module):
    """Scales each channel by what the whole image says of it."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc1 = nn.Conv2d(channels, squeezed, 1)
        self.fc2 = nn.Conv2d(squeezed, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        squeezed = nn.functional.silu(self.fc1(self.avgpool(x)))
        return x * torch.sigmoid(self.fc2(squeezed))


class DropSamples(nn.Module):
    """In training, zeroes whole samples with a probability and scales the others up for it."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.kept = 1 - probability

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.kept == 1:
            return x
        kept = x.new_empty(x.shape[0], 1, 1, 1).bernoulli_(self.kept)
        return x * kept.div_(self.kept)


class InvertedBottleneck(nn.Module):
    """Widens, convolves each channel alone, weighs the channels, and narrows again."""

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
        layers += [Squeeze(wide, channels_in // 4)]
        layers += [nn.Sequential(*convolution(wide, channels, 1))]
        self.block = nn.Sequential(*layers)
        self.residual = stride == 1 and channels_in == channels
        self.stochastic_depth = DropSamples(drop)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.block(x)
        if not self.residual:
            return y
        dropped: Tensor = self.stochastic_depth(y)
        return dropped + x


class EfficientNet(nn.Module):
    """Images [N, 3, size, size] → logits [N, classes]."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        stem = nn.Sequential(*convolution(3, 32, 3, stride=2), nn.SiLU(inplace=True))
        last = nn.Sequential(*convolution(320, 1280, 1), nn.SiLU(inplace=True))
        self.features = nn.Sequential(stem, *stages(), last)
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
        features = self.avgpool(self.features(images)).flatten(1)
        logits: Tensor = self.classifier(features)
        return logits


def stages() -> list[nn.Sequential]:
    """The seven stages; the later a block, the more often it is dropped in training."""
    total, done, made = sum(stage[-1] for stage in STAGES), 0, []
    for expansion, kernel, stride, channels_in, channels, blocks in STAGES:
        layers = []
        for index in range(blocks):
            entering, step = (channels_in, stride) if index == 0 else (channels, 1)
            drop = DROPPED_BLOCKS * done / total
            layers.append(InvertedBottleneck(expansion, kernel, step, entering, channels, drop))
            done += 1
        made.append(nn.Sequential(*layers))
    return made


def efficientnet_b0(classes: int) -> EfficientNet:
    """The smallest of the family."""
    return EfficientNet(classes)
