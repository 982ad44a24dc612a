"""Programs with ordinary datasets, which keep the same samples although some look as if not."""

import functools
import logging
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from stateful_data import COUNT, Made, Program, dataset, number, plain_epochs
from torch.utils.data import ConcatDataset, Sampler, Subset, TensorDataset

INNOCENT: dict[str, Program] = {}


def innocent(function: Program) -> Program:
    INNOCENT[function.__name__] = function
    return function


MEAN = (0.5, 0.25)
LABELS = {"cat": 0, "dog": 1}
logger = logging.getLogger(__name__)


class Pictures(Made):
    """As those of torchvision: a list of paths and labels, a transform, constants of the module."""

    classes = ("cat", "dog")

    def __init__(self, folder):
        self.samples = []
        for i in range(COUNT):
            path = Path(folder, f"{i}.png")
            Image.new("RGB", (4, 4), (i, i, i)).save(path)
            self.samples.append((str(path), self.classes[i % 2]))
        self.transform = self.flipped

    def flipped(self, picture):
        return picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)

    def __getitem__(self, i):
        path, label = self.samples[i]
        with Image.open(path) as opened:
            picture = self.transform(opened.convert("RGB"))
        if picture.size != (4, 4):
            logger.warning("odd picture %s", path)
        x = torch.from_numpy(np.array(picture, dtype="float32"))
        x -= MEAN[0]
        return x[0, 0] * (1 + LABELS[label])


@innocent
def pictures(load):
    with tempfile.TemporaryDirectory() as folder:
        return plain_epochs(load(Pictures(folder)))


class Remembering(Made):
    """Memos of every kind, and a length counted once."""

    def __init__(self):
        self.memo, self.rows, self.length = {}, [None] * COUNT, None

    def __len__(self):
        if self.length is None:
            self.length = COUNT
        return self.length

    @functools.cached_property
    def table(self):
        return [float(i) for i in range(COUNT)]

    def __getitem__(self, i):
        if i not in self.memo:
            self.memo[i] = number(i)
        if self.rows[i] is None:
            self.rows[i] = torch.exp(self.memo[i])
        return self.memo[i] + self.rows[i] + self.table[i]


@innocent
def memos(load):
    return plain_epochs(load(Remembering()))


@functools.lru_cache
def squared(i):
    return number(i * i)


@innocent
def remembered_results(load):
    return plain_epochs(load(dataset(lambda self, i: squared(i))))


@innocent
def parts_of_datasets(load):
    rows = TensorDataset(torch.arange(8.0))
    return plain_epochs(load(ConcatDataset([Subset(rows, range(4)), Subset(rows, [5, 6])])))


@innocent
def local_work(load):
    def sample(self, i):
        found = {"x": 0.0}
        counts = [0.0] * 4
        for k in range(4):
            counts[k] += k
            found["x"] += counts[k]
        found.update(y=1.0)
        kept = self.table[i].copy()
        kept["z"] = 2.0
        return number(i + found["x"] + kept["z"] + kept["w"])

    return plain_epochs(load(dataset(sample, table=[{"w": float(i)} for i in range(COUNT)])))


@innocent
def arrays_and_texts(load):
    def sample(self, i):
        words = self.texts[i % len(self.texts)].split()
        return torch.tensor([float(len(words)), float(self.data[i, 0]) + i])

    texts = [f"One sentence, and/or two. {i}" for i in range(2000)]
    return plain_epochs(load(dataset(sample, texts=texts, data=np.ones((COUNT, 3)))))


class Vocabulary:
    """A tokenizer of the program's own, with a memo."""

    def __init__(self):
        self.ids = {chr(97 + i): i for i in range(26)}
        self.known = {}

    def __call__(self, text):
        if text not in self.known:
            self.known[text] = [self.ids[letter] for letter in text]
        return self.known[text]


@innocent
def tokens(load):
    vocabulary = Vocabulary()
    made = dataset(lambda self, i: torch.tensor(self.encode(self.texts[i])))
    made.texts, made.encode = [f"{chr(97 + i)}bc" for i in range(COUNT)], vocabulary
    return plain_epochs(load(made))


@innocent
def own_sampler(load):
    class Backwards(Sampler):
        def __init__(self):
            self.position = 0

        def __iter__(self):
            for self.position in reversed(range(COUNT)):
                yield self.position

        def __len__(self):
            return COUNT

    return plain_epochs(load(dataset(lambda self, i: number(i)), sampler=Backwards()))


@innocent
def own_collate(load):
    def padded(samples):
        width = max(len(sample) for sample in samples)
        out = torch.zeros(len(samples), width)
        for row, sample in enumerate(samples):
            out[row, : len(sample)] = sample
        return out

    return plain_epochs(
        load(dataset(lambda self, i: torch.arange(float(i + 1))), collate_fn=padded)
    )
