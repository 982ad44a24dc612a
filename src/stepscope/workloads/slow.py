"""A training program that is deliberately slow, in the ways real ones are: `stepscope demo`
observes it.

Compressed images are unpacked and resized one by one in the main process, batches are copied from
pageable memory, and every step stops to read the loss.
"""

import argparse
import time
import zlib
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


class Fetch:
    """Waits as for slow storage behind a network."""

    def __init__(self, milliseconds: float) -> None:
        self.seconds = milliseconds / 1e3

    def __call__(self, stored: bytes) -> bytes:
        time.sleep(self.seconds)
        return stored


class Decode:
    """Decompresses a stored image: 3×32×32 bytes with its label's pattern."""

    def __call__(self, stored: bytes) -> Tensor:
        pixels = bytearray(zlib.decompress(stored))
        return torch.frombuffer(pixels, dtype=torch.uint8).view(3, 32, 32)


class Resize:
    """Enlarges an image, bicubic in float64: far more precision than needed."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, image: Tensor) -> Tensor:
        larger = nn.functional.interpolate(
            image[None].double(), size=(self.size, self.size), mode="bicubic", antialias=True
        )
        return larger[0].float()


class Normalize:
    def __call__(self, image: Tensor) -> Tensor:
        return image / 127.5 - 1


class Compose:
    """Transforms in order."""

    def __init__(self, transforms: list[Callable[[Any], Any]]) -> None:
        self.transforms = transforms

    def __call__(self, item: Any) -> Any:
        for transform in self.transforms:
            item = transform(item)
        return item


class StoredImages(Dataset[tuple[Tensor, int]]):
    """Seeded, learnable images, stored compressed: the label decides which channel is brightest."""

    def __init__(self, count: int, transform: Callable[[bytes], Tensor]) -> None:
        generator = torch.Generator().manual_seed(0)
        pixels = torch.randint(0, 160, (count, 3, 32, 32), generator=generator, dtype=torch.uint8)
        self.labels = torch.randint(0, 3, (count,), generator=generator).tolist()
        for image, label in zip(pixels, self.labels, strict=True):
            image[label] += 64
        self.stored = [zlib.compress(bytes(image.flatten().tolist()), 9) for image in pixels]
        self.transform = transform

    def __len__(self) -> int:
        return len(self.stored)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.transform(self.stored[index]), self.labels[index]


class Block(nn.Module):
    """Two convolutions around a shortcut."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(channels)
        self.shortcut = nn.Conv2d(channels_in, channels, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.first_norm(self.first(x)))
        return torch.relu(self.second_norm(self.second(y)) + self.shortcut(x))


class SmallResNet(nn.Module):
    """A residual network of a given width."""

    def __init__(self, width: int, classes: int = 3) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 7, 8, 3)
        sizes = [width, width, 2 * width, 4 * width]
        self.blocks = nn.Sequential(*(Block(a, b, stride=2) for a, b in pairwise(sizes)))
        self.head = nn.Linear(4 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.blocks(torch.relu(self.stem(x)))
        return self.head(features.mean(dim=(2, 3)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--threads", type=int, help="CPU threads per operator")
    parser.add_argument("--storage-ms", type=float, default=0, help="latency of each sample")
    arguments = parser.parse_args()

    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    fetch = [Fetch(arguments.storage_ms)] if arguments.storage_ms else []
    transform = Compose([*fetch, Decode(), Resize(arguments.size), Normalize()])
    images = StoredImages(512, transform)
    loader = DataLoader(images, batch_size=arguments.batch, shuffle=True, num_workers=0)
    model = SmallResNet(arguments.width).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss_function = nn.CrossEntropyLoss()

    step, total = 0, 0.0
    while step < arguments.steps:
        for inputs, labels in loader:
            inputs, labels = inputs.to(device), labels.to(device)
            loss = loss_function(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if device.type == "cuda":
                torch.cuda.synchronize()
            total += loss.item()
            step += 1
            if step % 50 == 0:
                print(f"step {step}  loss {total / 50:.4f}")
                total = 0.0
            if step == arguments.steps:
                break


if __name__ == "__main__":
    main()
