"""Samples made from a seed: images, segmented shapes, character sequences and token sequences. A
sample depends only on the seed, its split and its index.
"""

import hashlib
from itertools import permutations
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stepscope.record.errors import UsageError

_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_MIX: Final = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))


class LabelledArrays:
    """Samples in arrays, each with a class or another target."""

    inputs: NDArray[Any]
    labels: NDArray[Any]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return self.inputs[index], self.labels[index]


def _random_words(
    seed: int, name: str, samples: int, each: int, first: int = 0
) -> NDArray[np.uint64]:
    """`each` random words for each sample from `first` on: [samples, each]. A sample's words do not
    depend on the number of samples (SplitMix64 of a counter)."""
    counter = np.arange(first * each, (first + samples) * each, dtype=np.uint64)
    mixed = (counter + np.uint64(1)) * _GOLDEN + np.uint64(_key(seed, name))
    for shift, factor in _MIX:
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    return mixed.reshape(samples, each)


def _uniform(seed: int, name: str, samples: int, each: int) -> NDArray[Any]:
    """Numbers in [0, 1): [samples, each]."""
    return (_random_words(seed, name, samples, each) >> np.uint64(11)) * 2.0**-53


def integers(seed: int, name: str, samples: int, below: int) -> NDArray[np.int64]:
    """One integer in [0, below) per sample."""
    return (_uniform(seed, name, samples, 1)[:, 0] * below).astype(np.int64)


def _seeded_generator(seed: int, name: str) -> np.random.Generator:
    """A generator for what all samples of a set share, in train and test."""
    return np.random.default_rng(_key(seed, name))


def _pick(draw: Any, below: int) -> int:
    """An integer in [0, below) from a number in [0, 1), which rounding may have turned into 1."""
    return min(int(draw * below), below - 1)


def _key(seed: int, name: str) -> int:
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


MOST_CLASSES: Final = 1000
_KINDS: Final = 10  # colours, stripes and places: the three digits of a class
_NOISE_OFFSETS: Final = 64
_COLOUR, _STRIPES, _SPOT, _JITTER, _IMAGE_NOISE = 14.0, 16.0, 30.0, 45.0, 44.0  # grey levels


class SyntheticImages:
    """Bytes [3, pixels, pixels] and a class. Samples differ in place, colour cast and noise. Every
    class has its own colour, stripes and spot; up to ten classes differ in all three, further ones
    share some and are rarer. Models with more than 1,000 classes see the first 1,000."""

    def __init__(self, split: str, samples: int, pixels: int, classes: int, seed: int) -> None:
        self.pixels = pixels
        self.labels = _labels(seed, split, samples, min(classes, MOST_CLASSES))
        self._draws = _uniform(seed, f"{split} images", samples, 8).astype(np.float32)
        made = _seeded_generator(seed, "images")
        self._margin = max(1, pixels // 8)
        wide = pixels + self._margin
        self._colours = _COLOUR * _tints(made)
        self._tints = _STRIPES * _tints(made)
        angle = np.pi / _KINDS * np.arange(_KINDS)[:, None]
        cycles = min(6.0, pixels / 4) * np.stack([np.sin(angle), np.cos(angle)], axis=1)
        phase = 2 * np.pi / pixels * cycles * np.arange(wide)  # of waves along y and x
        self._cosines, self._sines = (f(phase).astype(np.float32) for f in (np.cos, np.sin))
        # Bell curves along y and x whose product is a soft spot, placed on a circle.
        middle = 0.5 + 0.3 * np.stack([np.sin(2 * angle), np.cos(2 * angle)], axis=1)
        bells = np.exp(-((np.arange(wide) / wide - middle) ** 2) / (2 * 0.13**2))
        self._spots = bells.astype(np.float32)[made.permutation(_KINDS)]
        noisy = pixels + _NOISE_OFFSETS
        noise = made.standard_normal((3, noisy, noisy), dtype=np.float32)
        self._noise = np.float32(127.5) + np.float32(_IMAGE_NOISE) * noise

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[NDArray[Any], Any]:
        label, draws = self.labels[index], self._draws[index]
        colour, stripes, spot = class_digits(int(label))
        y, x = (_pick(draw, self._margin + 1) for draw in draws[:2])
        rows, columns = slice(y, y + self.pixels), slice(x, x + self.pixels)
        (cosine, cosine_x), (sine, sine_x) = self._cosines[stripes], self._sines[stripes]
        waves = np.outer(cosine[rows], cosine_x[columns]) - np.outer(sine[rows], sine_x[columns])
        bell, bell_x = self._spots[spot]
        y, x = (_pick(draw, _NOISE_OFFSETS) for draw in draws[2:4])
        image = self._noise[:, y : y + self.pixels, x : x + self.pixels].copy()
        tint = self._tints[stripes] * (draws[4] + np.float32(0.5))
        image += waves * tint[:, None, None]
        cast = self._colours[colour] + np.float32(_JITTER) * (draws[5:8] - np.float32(0.5))
        image += np.outer(np.float32(_SPOT) * bell[rows], bell_x[columns]) + cast[:, None, None]
        return np.clip(image, 0, 255, out=image).astype(np.uint8), label


def class_digits(label: int) -> tuple[int, int, int]:
    """Colour, stripes and spot of a class: no two of 1,000 share all three, no two of ten share
    any."""
    return label % _KINDS, (label // 10 + label) % _KINDS, (label // 100 + label) % _KINDS


def _labels(seed: int, split: str, samples: int, classes: int) -> NDArray[np.int64]:
    """Class labels: ten classes are equally frequent, the next ten a quarter as frequent, then a
    ninth, … With few samples, a thousand equal classes would appear too rarely to learn any."""
    often = 1.0 / (1 + np.arange(classes) // _KINDS) ** 2
    steps = np.cumsum(often) / often.sum()
    drawn = _uniform(seed, f"{split} labels", samples, 1)[:, 0]
    return np.minimum(np.searchsorted(steps, drawn, side="right"), classes - 1)


def _tints(made: np.random.Generator) -> NDArray[np.float32]:
    """One colour per kind, around a grey of 0: [kinds, 3]."""
    angle = made.permutation(_KINDS)[:, None] / _KINDS + np.arange(3) / 3
    return (1.4 * np.cos(2 * np.pi * angle)).astype(np.float32)


_SHAPES: Final = 4
_EACH: Final = 8  # random numbers per shape
_OWN: Final = 9  # and further ones per image
_SHAPE_OFFSETS: Final = 64
_CLOUDS, _SHAPE_NOISE, _CAST, _FILL, _TINT = 30.0, 30.0, 80.0, 28.0, 15.0  # grey levels


class SyntheticShapes:
    """Bytes [3, pixels, pixels] and the class of each pixel [pixels, pixels], 0 the background.
    Classes differ in outline (disc, square, diamond, …) and fill stripes; colours of background and
    shapes vary equally."""

    def __init__(self, split: str, samples: int, pixels: int, classes: int, seed: int) -> None:
        if classes < 2:
            raise UsageError(f"--classes {classes}: segmentation needs 2 or more")
        self.pixels = pixels
        self.classes = classes
        self._draws = _uniform(seed, f"{split} shapes", samples, _OWN + _SHAPES * _EACH)
        made = _seeded_generator(seed, "shapes")
        wide = pixels + _SHAPE_OFFSETS
        y, x = np.mgrid[:wide, :wide]
        clouds = np.zeros((wide, wide))  # a smooth texture
        for _ in range(8):
            angle, phase, length = made.uniform((0, 0, 10), (2 * np.pi, 2 * np.pi, 60))
            clouds += np.cos(2 * np.pi / length * (x * np.cos(angle) + y * np.sin(angle)) + phase)
        self._clouds = _CLOUDS * (clouds / 2).astype(np.float32)
        noise = made.standard_normal((3, wide, wide), dtype=np.float32)
        self._noise = np.float32(_SHAPE_NOISE) * noise
        self._tints = made.uniform(-_TINT, _TINT, (classes, 3)).astype(np.float32)

    def __len__(self) -> int:
        return len(self._draws)

    def __getitem__(self, index: int) -> tuple[NDArray[Any], NDArray[Any]]:
        draws = self._draws[index]
        y, x, v, u = (_pick(draw, _SHAPE_OFFSETS) for draw in draws[:4])
        p = self.pixels
        image = self._noise[:, v : v + p, u : u + p] + self._clouds[y : y + p, x : x + p]
        image += _cast(draws[4:7])
        mask = np.zeros((p, p), dtype=np.uint8)
        first = 1 + _pick(draws[7], self.classes - 1)
        shapes = 2 + _pick(draws[8], _SHAPES - 1)
        for number, shape in enumerate(draws[_OWN:].reshape(_SHAPES, _EACH)[:shapes]):
            self._draw(image, mask, shape, 1 + (first + number) % (self.classes - 1))
        return np.clip(image, 0, 255, out=image).astype(np.uint8), mask

    def _draw(self, image: Any, mask: Any, draws: Any, label: int) -> None:
        """Draw a shape over the image."""
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
    """A mask of a disc, square or diamond around its centre."""
    if outline == 0:
        return np.asarray(y * y + x * x <= radius * radius)
    y, x = abs(y), abs(x)
    return np.asarray(np.maximum(y, x) <= 0.85 * radius if outline == 1 else y + x <= radius)


def _cast(draws: Any) -> NDArray[np.float32]:
    """A colour: [3, 1, 1] grey levels around the middle one."""
    colour: NDArray[np.float32] = (127.5 + _CAST * (draws - 0.5)).astype(np.float32)
    return colour[:, None, None]


PADDING_CODE: Final = 0
OTHER_CODE: Final = 1
_FIRST_CODE: Final = 2
_LETTERS: Final = 26
_WORDS: Final = 3
_WORD_LENGTH: Final = 3
_ORDERS: Final = 6
_FEWEST: Final = 6


def encode_characters(text: str, length: int, vocabulary: int) -> NDArray[np.uint8]:
    """Codes of a text's first characters: 0 after its end, 1 for characters without a code."""
    codes = np.full(length, PADDING_CODE, dtype=np.uint8)
    for place, character in enumerate(text[:length]):
        code = _FIRST_CODE + ord(character) - ord(" ")
        codes[place] = code if _FIRST_CODE <= code < min(vocabulary, 256) else OTHER_CODE
    return codes


class SyntheticCharacters(LabelledArrays):
    """Codes [length] and a class, encoded in the letter order of three-letter words. About a third
    of a text is such words, some of another class."""

    def __init__(
        self, split: str, samples: int, length: int, vocabulary: int, classes: int, seed: int
    ) -> None:
        letters = min(_LETTERS, vocabulary - _FIRST_CODE)
        if letters < _FEWEST or length < _WORD_LENGTH:
            raise UsageError(
                f"characters need {_FIRST_CODE + _FEWEST} codes or more"
                f" and --length {_WORD_LENGTH} or more"
            )
        self.labels = integers(seed, f"{split} labels", samples, classes)
        drawn = _uniform(seed, f"{split} letters", samples, length)
        self.inputs = (_FIRST_CODE + drawn * letters).astype(np.uint8)
        words = _FIRST_CODE + _class_words(_seeded_generator(seed, "characters"), classes, letters)
        draws = _uniform(seed, f"{split} words", samples, 3 * max(1, length // 9))
        rows = np.arange(samples)[:, None]
        # Write words over the letters, one word at a time for all samples.
        for which, where, of in draws.reshape(samples, -1, 3).transpose(1, 2, 0):
            start = (where * (length - _WORD_LENGTH + 1)).astype(np.int64)
            stray = (of * 8 * classes).astype(np.int64)  # one word in eight is of any class
            label = np.where(stray < classes, stray, self.labels)
            word = words[label, (which * _WORDS).astype(np.int64)]
            self.inputs[rows, start[:, None] + np.arange(_WORD_LENGTH)] = word


def _class_words(made: np.random.Generator, classes: int, letters: int) -> NDArray[np.int64]:
    """Words for every class: [classes, words, letters]. Groups of six classes share letters and
    differ only in their order."""
    whole = letters // _WORD_LENGTH * _WORD_LENGTH
    triples = made.permutation(letters)[:whole].reshape(-1, _WORD_LENGTH)
    orders = np.array(list(permutations(range(_WORD_LENGTH))))[made.permutation(_ORDERS)]
    number = np.arange(classes)
    first = number // _ORDERS * _WORDS
    chosen = triples[(first[:, None] + np.arange(_WORDS)) % len(triples)]
    order = orders[number % _ORDERS][:, None, :]
    return np.take_along_axis(chosen, np.broadcast_to(order, chosen.shape), axis=2)


_MOST_TOKENS: Final = 256
"""Tokens in use: with a large vocabulary's every token, learning would take too long."""
_CHANCES: Final = (0.5, 0.25, 0.1, 0.05)
"""Probabilities of a token's four usual successors; else any token follows."""
_TOGETHER: Final = 2048


class SyntheticTokens:
    """Tokens [length] and their successors [length]."""

    def __init__(self, split: str, samples: int, length: int, vocabulary: int, seed: int) -> None:
        if vocabulary < 2 or length < 1:
            raise UsageError("language needs 2 tokens or more and --length 1 or more")
        made = _seeded_generator(seed, "language")
        used = min(vocabulary, _MOST_TOKENS)
        tokens = made.permutation(vocabulary)[:used].astype(np.int32)
        following = made.integers(0, used, (used, len(_CHANCES)))
        parts = []
        for start in range(0, samples, _TOGETHER):
            count = min(_TOGETHER, samples - start)
            drawn = _random_words(seed, f"{split} tokens", count, length + 1, start)
            parts.append(tokens[_walk(drawn, following)])
        self._tokens = np.concatenate(parts)

    def __len__(self) -> int:
        return len(self._tokens)

    def __getitem__(self, index: int) -> tuple[NDArray[Any], NDArray[Any]]:
        tokens = self._tokens[index]
        return tokens[:-1], tokens[1:]


def _walk(draws: NDArray[np.uint64], following: NDArray[np.int64]) -> NDArray[np.int64]:
    """Token sequences: [samples, length]."""
    used = len(following)
    chance = (draws >> np.uint64(32)) * 2.0**-32
    any_token = (draws & np.uint64(0xFFFFFFFF)).astype(np.int64) % used
    choice = np.searchsorted(np.cumsum(_CHANCES), chance, side="right")
    usual = choice < len(_CHANCES)
    choice[~usual] = 0
    walked = any_token
    for place in range(1, draws.shape[1]):
        after = following[walked[:, place - 1], choice[:, place]]
        walked[:, place] = np.where(usual[:, place], after, any_token[:, place])
    return walked
