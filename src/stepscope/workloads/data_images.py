"""Images made from a seed, whose class shows in colours, stripes and a bright spot."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stepscope.workloads.data_draws import pick, tables, uniform

MOST_CLASSES: Final = 1000
_KINDS: Final = 10  # of colours, of stripes and of places: three digits of a class
_OFFSETS: Final = 64
_COLOUR, _STRIPES, _SPOT, _JITTER, _NOISE = 14.0, 16.0, 30.0, 45.0, 44.0  # grey levels


class SyntheticImages:
    """Bytes [3, pixels, pixels] and a class. Samples differ in place, colour cast and noise.

    Every class has a colour of its own, stripes and a spot; up to ten classes differ in all three,
    more share some of them and are rarer. Models of more than 1,000 classes see the first 1,000.
    """

    def __init__(self, split: str, samples: int, pixels: int, classes: int, seed: int) -> None:
        self.pixels = pixels
        self.labels = _labels(seed, split, samples, min(classes, MOST_CLASSES))
        self._draws = uniform(seed, f"{split} images", samples, 8).astype(np.float32)
        made = tables(seed, "images")
        self._margin = max(1, pixels // 8)
        wide = pixels + self._margin
        self._colours = _COLOUR * _tints(made)
        self._tints = _STRIPES * _tints(made)
        self._cosines, self._sines = _waves(wide, pixels)
        self._spots = _spots(wide)[made.permutation(_KINDS)]
        noise = made.standard_normal((3, pixels + _OFFSETS, pixels + _OFFSETS), dtype=np.float32)
        self._noise = np.float32(127.5) + np.float32(_NOISE) * noise

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[NDArray[Any], Any]:
        label, draws = self.labels[index], self._draws[index]
        colour, stripes, spot = digits(int(label))
        y, x = (pick(draw, self._margin + 1) for draw in draws[:2])
        rows, columns = slice(y, y + self.pixels), slice(x, x + self.pixels)
        (cosine, cosine_x), (sine, sine_x) = self._cosines[stripes], self._sines[stripes]
        waves = np.outer(cosine[rows], cosine_x[columns]) - np.outer(sine[rows], sine_x[columns])
        bell, bell_x = self._spots[spot]
        y, x = (pick(draw, _OFFSETS) for draw in draws[2:4])
        image = self._noise[:, y : y + self.pixels, x : x + self.pixels].copy()
        tint = self._tints[stripes] * (draws[4] + np.float32(0.5))
        image += waves * tint[:, None, None]
        cast = self._colours[colour] + np.float32(_JITTER) * (draws[5:8] - np.float32(0.5))
        image += np.outer(np.float32(_SPOT) * bell[rows], bell_x[columns]) + cast[:, None, None]
        return np.clip(image, 0, 255, out=image).astype(np.uint8), label


def digits(label: int) -> tuple[int, int, int]:
    """Colour, stripes and spot of a class: no two of 1,000 share all, no two of ten share any."""
    return label % _KINDS, (label // 10 + label) % _KINDS, (label // 100 + label) % _KINDS


def _labels(seed: int, split: str, samples: int, classes: int) -> NDArray[np.int64]:
    """Classes: ten are alike often, the next ten a quarter as often, then a ninth, ….

    Few samples would show each of a thousand classes once or twice: too rarely to learn any.
    """
    often = 1.0 / (1 + np.arange(classes) // _KINDS) ** 2
    steps = np.cumsum(often) / often.sum()
    drawn = uniform(seed, f"{split} labels", samples, 1)[:, 0]
    return np.minimum(np.searchsorted(steps, drawn, side="right"), classes - 1)


def _tints(made: np.random.Generator) -> NDArray[np.float32]:
    """One colour of each kind, about a grey that is 0: [kinds, 3]."""
    angle = made.permutation(_KINDS)[:, None] / _KINDS + np.arange(3) / 3
    return (1.4 * np.cos(2 * np.pi * angle)).astype(np.float32)


def _waves(wide: int, pixels: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Cosines and sines along y and x of waves in each direction: [kinds, 2, wide] each."""
    angle = np.pi / _KINDS * np.arange(_KINDS)
    cycles = min(6.0, pixels / 4) * np.stack([np.sin(angle), np.cos(angle)], axis=1)
    phase = 2 * np.pi / pixels * cycles[:, :, None] * np.arange(wide)
    return np.cos(phase).astype(np.float32), np.sin(phase).astype(np.float32)


def _spots(wide: int) -> NDArray[np.float32]:
    """Bells along y and x whose product is a soft spot, one of those on a circle."""
    angle = 2 * np.pi / _KINDS * np.arange(_KINDS)
    middle = 0.5 + 0.3 * np.stack([np.sin(angle), np.cos(angle)], axis=1)
    away = np.arange(wide) / wide - middle[:, :, None]
    return np.exp(-(away**2) / (2 * 0.13**2)).astype(np.float32)
