"""Residual networks; parameters are named as torchvision names them, so that its weights load."""

from typing import Any

from torch import Tensor, nn


class Basic(nn.Module):
    """Two 3×3 convolutions beside a shortcut."""

    widening = 1

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample = shortcut(channels_in, channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        y += x if self.downsample is None else self.downsample(x)
        activated: Tensor = self.relu(y)
        return activated


class Bottleneck(nn.Module):
    """1×1, 3×3 and 1×1 convolutions beside a shortcut; the stride is in the 3×3 one."""

    widening = 4

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        wide = self.widening * channels
        self.conv1 = nn.Conv2d(channels_in, channels, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv3 = nn.Conv2d(channels, wide, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(wide)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = shortcut(channels_in, wide, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        y += x if self.downsample is None else self.downsample(x)
        activated: Tensor = self.relu(y)
        return activated


def shortcut(channels_in: int, channels: int, stride: int) -> nn.Sequential | None:
    """None where the block's input can be added as it is."""
    if stride == 1 and channels_in == channels:
        return None
    return nn.Sequential(
        nn.Conv2d(channels_in, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
    )


class ResNet(nn.Module):
    """Images [N, 3, size, size] → logits [N, classes], with the stem made for ImageNet."""

    def __init__(self, block: Any, depths: tuple[int, int, int, int], classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        widths = [64, *(block.widening * channels for channels in (64, 128, 256, 512))]
        self.layer1 = stage(block, widths[0], 64, depths[0], stride=1)
        self.layer2 = stage(block, widths[1], 128, depths[1], stride=2)
        self.layer3 = stage(block, widths[2], 256, depths[2], stride=2)
        self.layer4 = stage(block, widths[3], 512, depths[3], stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(widths[4], classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        logits: Tensor = self.fc(self.avgpool(x).flatten(1))
        return logits


def stage(block: Any, channels_in: int, channels: int, depth: int, stride: int) -> nn.Sequential:
    """Blocks of one width; only the first may shrink the image."""
    first = block(channels_in, channels, stride)
    rest = (block(block.widening * channels, channels, 1) for _ in range(depth - 1))
    return nn.Sequential(first, *rest)


def resnet18(classes: int) -> ResNet:
    """Eighteen layers."""
    return ResNet(Basic, (2, 2, 2, 2), classes)


def resnet50(classes: int) -> ResNet:
    """Fifty layers."""
    return ResNet(Bottleneck, (3, 4, 6, 3), classes)
