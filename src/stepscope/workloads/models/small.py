"""Small models, for first programs and smoke tests: an MLP, a CNN and an LSTM."""

import torch
from torch import Tensor, nn


class MLP(nn.Module):
    """Images [N, 3, size, size] → logits [N, classes], by two hidden layers of `width`."""

    def __init__(self, size: int, classes: int, width: int = 256) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(),
            nn.Linear(3 * size * size, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images)


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

    def __init__(self, size: int, classes: int) -> None:
        super().__init__()
        if size < 8:
            raise ValueError(f"images of {size} pixels are too small: --size 8 or more")
        self.blocks = nn.Sequential(block(3, 32), block(32, 64), block(64, 128))
        self.pool = nn.AdaptiveAvgPool2d(GRID)
        self.hidden = nn.Linear(128 * GRID * GRID, 256)
        self.head = nn.Linear(256, classes)

    def forward(self, images: Tensor) -> Tensor:
        features = self.pool(self.blocks(images)).flatten(1)
        return self.head(torch.relu(self.hidden(features)))


class CharacterLSTM(nn.Module):
    """Characters int64 [N, length] → logits [N, classes], from the mean over time."""

    def __init__(
        self, vocabulary: int, classes: int, embedding: int = 128, hidden: int = 256
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, hidden, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * hidden, classes)

    def forward(self, characters: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(characters))
        return self.head(states.mean(dim=1))
