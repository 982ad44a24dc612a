"""Linear layers over the pixels."""

from torch import Tensor, nn


class MLP(nn.Module):
    """Images [N, 3, size, size] → logits [N, classes]."""

    def __init__(self, size: int, classes: int, width: int) -> None:
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
        logits: Tensor = self.layers(images)
        return logits


def mlp(size: int, classes: int, width: int = 256) -> MLP:
    """Two hidden layers of `width`."""
    return MLP(size, classes, width)
