"""How many samples a batch holds."""

from collections import UserDict, namedtuple
from types import SimpleNamespace

import numpy as np
import pytest

from stepscope.probe.points.loader import batch_axis, batch_size, leaf_bytes

Pair = namedtuple("Pair", "image label")


def t(*shape):
    """Anything with a shape is a leaf; nothing else of a tensor is needed."""
    return SimpleNamespace(shape=shape)


class Encoding(UserDict):
    """A mapping that also has a shape, like some tensor dictionaries."""

    shape = (8,)


SIZES = {
    "a tensor": (t(32, 3, 224, 224), 32),
    "an array": (np.zeros((5, 2)), 5),
    "image and label": ([t(16, 3, 8, 8), t(16)], 16),
    "a tuple": ((t(16, 3), t(16)), 16),
    "a named tuple": (Pair(t(4, 3), t(4)), 4),
    "a dictionary": ({"input_ids": t(8, 128), "labels": t(8)}, 8),
    "a mapping with a shape of its own": (Encoding(a=t(8, 3), b=t(8)), 8),
    "nested containers": ({"x": [t(6, 2), {"y": t(6)}], "z": (t(6),)}, 6),
    "images and a list of detection targets": ([t(2, 3, 9, 9), t(2), [t(7, 4), t(3, 4)]], 2),
    "a scalar beside the batch": ([t(12, 5), t()], 12),
    "sentences": (["one", "two", "three"], 3),
    "a last, smaller batch": ([t(3, 3), t(3)], 3),
    "no samples": ([t(0, 3), t(0)], 0),
    "a scalar": (t(), 0),
    "nothing": (None, 0),
    "an empty list": ([], 0),
    "an empty dictionary": ({}, 0),
    "text": ("sentence", 0),
    "a number": (3, 0),
}


@pytest.mark.parametrize(("batch", "size"), SIZES.values(), ids=SIZES.keys())
def test_reads_the_size_of(batch, size):
    assert batch_size(batch) == size


def test_the_size_is_an_ordinary_integer():
    assert type(batch_size(np.zeros((5, 2)))) is int
    assert type(batch_size([t(np.int64(4))])) is int


def test_time_major_batches_count_along_their_second_dimension():
    batch = [t(100, 8, 40), t(20, 8)]
    assert batch_axis(batch, hint=8) == 1
    assert batch_size(batch, axis=1) == 8


def test_a_time_major_tensor_alone():
    assert batch_size(t(100, 8, 40), axis=1) == 8
    assert batch_size(t(100), axis=1) == 0


@pytest.mark.parametrize(
    ("batch", "hint"),
    [
        ([t(8, 100), t(8)], 8),
        (t(8, 8), 8),
        ([t(100, 8), t(8)], 8),
        ([t(5, 100), t(5)], 8),
        ([t(100, 8), t(7)], 8),
        ([t(100, 8)], None),
        (["text"], 8),
        (t(), 8),
    ],
)
def test_the_first_dimension_counts_unless_every_leaf_says_otherwise(batch, hint):
    assert batch_axis(batch, hint) == 0


def test_a_batch_of_very_many_leaves_is_read_from_the_first_few():
    assert batch_size([t(4, 2) for _ in range(10_000)]) == 4


def test_a_deep_batch_is_read():
    batch = t(9, 1)
    for _ in range(50):
        batch = [batch]
    assert batch_size(batch) == 9


def test_what_each_leaf_of_a_batch_weighs():
    batch = {"image": np.zeros((4, 3), np.float32), "more": [np.zeros(4, np.int64), "name", 7]}
    assert leaf_bytes(batch) == [48, 32]
    assert leaf_bytes([t(4, 2)]) == [0]
    assert leaf_bytes(None) == []
