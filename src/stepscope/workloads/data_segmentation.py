"""Images of shapes on a textured background, with the class of every pixel."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stepscope.record.errors import UsageError
from stepscope.workloads.data_draws import pick, tables, uniform

_SHAPES: Final = 4
_EACH: Final = 8  # numbers drawn for a shape
_OWN: Final = 9  # and for an image besides
_OFFSETS: Final = 64
_CLOUDS, _NOISE, _CAST, _FILL, _TINT = 30.0, 30.0, 80.0, 28.0, 15.0  # grey levels


class SyntheticShapes:
    """Bytes [3, pixels, pixels] and the class of each pixel [pixels, pixels], 0 the background.

    Classes are told apart by outline (disc, square, diamond, …) and by the stripes of their fill;
    the colours of background and shapes vary alike.
    """

    def __init__(self, split: str, samples: int, pixels: int, classes: int, seed: int) -> None:
        if classes < 2:
            raise UsageError(f"--classes {classes}: segmentation needs 2 or more")
        self.pixels = pixels
        self.classes = classes
        self._draws = uniform(seed, f"{split} shapes", samples, _OWN + _SHAPES * _EACH)
        made = tables(seed, "shapes")
        wide = pixels + _OFFSETS
        self._clouds = _CLOUDS * _clouds(made, wide)
        noise = made.standard_normal((3, wide, wide), dtype=np.float32)
        self._noise = np.float32(_NOISE) * noise
        self._tints = made.uniform(-_TINT, _TINT, (classes, 3)).astype(np.float32)

    def __len__(self) -> int:
        return len(self._draws)

    def __getitem__(self, index: int) -> tuple[NDArray[Any], NDArray[Any]]:
        draws = self._draws[index]
        y, x, v, u = (pick(draw, _OFFSETS) for draw in draws[:4])
        p = self.pixels
        image = self._noise[:, v : v + p, u : u + p] + self._clouds[y : y + p, x : x + p]
        image += _cast(draws[4:7])
        mask = np.zeros((p, p), dtype=np.uint8)
        first = 1 + pick(draws[7], self.classes - 1)
        shapes = 2 + pick(draws[8], _SHAPES - 1)
        for number, shape in enumerate(draws[_OWN:].reshape(_SHAPES, _EACH)[:shapes]):
            self._draw(image, mask, shape, 1 + (first + number) % (self.classes - 1))
        return np.clip(image, 0, 255, out=image).astype(np.uint8), mask

    def _draw(self, image: Any, mask: Any, draws: Any, label: int) -> None:
        """Put a shape over what is there."""
        p = self.pixels
        radius = p * (0.12 + 0.13 * draws[0])
        middle = radius + draws[1:3] * max(0.0, p - 2 * radius)
        low = np.maximum(0, np.floor(middle - radius)).astype(int)
        high = np.minimum(p, np.ceil(middle + radius) + 1).astype(int)
        y = np.arange(low[0], high[0], dtype=np.float32)[:, None]
        x = np.arange(low[1], high[1], dtype=np.float32)[None, :]
        inside = _inside((label - 1) % 3, y - middle[0], x - middle[1], radius)
        angle = np.pi * (label / self.classes + 0.4 * (draws[3] - 0.5))
        along = x * np.cos(angle) + y * np.sin(angle)
        stripes = np.float32(_FILL) * np.cos(2 * np.pi / 6 * along + 6 * draws[4])
        fill = stripes.astype(np.float32) + _cast(draws[5:8]) + self._tints[label][:, None, None]
        box = np.s_[low[0] : high[0], low[1] : high[1]]
        grain = self._noise[(slice(None), *box)]
        np.copyto(image[(slice(None), *box)], fill + grain, where=inside)
        mask[box][inside] = label


def _inside(outline: int, y: Any, x: Any, radius: float) -> NDArray[np.bool_]:
    """Where a disc, square or diamond is, around its middle."""
    if outline == 0:
        return np.asarray(y * y + x * x <= radius * radius)
    if outline == 1:
        return np.asarray(np.maximum(abs(y), abs(x)) <= 0.85 * radius)
    return np.asarray(abs(y) + abs(x) <= radius)


def _cast(draws: Any) -> NDArray[np.float32]:
    """A colour: [3, 1, 1] grey levels around the middle one."""
    colour: NDArray[np.float32] = (127.5 + _CAST * (draws - 0.5)).astype(np.float32)
    return colour[:, None, None]


def _clouds(made: np.random.Generator, wide: int) -> NDArray[np.float32]:
    """A smooth texture of variance about 1: [wide, wide]."""
    y, x = np.mgrid[:wide, :wide]
    total = np.zeros((wide, wide))
    for _ in range(8):
        angle, phase, length = made.uniform((0, 0, 10), (2 * np.pi, 2 * np.pi, 60))
        total += np.cos(2 * np.pi / length * (x * np.cos(angle) + y * np.sin(angle)) + phase)
    return (total / 2).astype(np.float32)
