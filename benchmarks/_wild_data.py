"""Data for public programs, made instead of downloaded: the same formats, random content.

A maker gets the path to make and its numbers. The same numbers give the same files.
"""

import gzip
import pickle
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

_WORDS = 800
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def make(what: str, path: Path) -> None:
    """`idx 640 128` makes what that maker makes of these numbers."""
    name, *numbers = what.split()
    if name not in MAKERS:
        raise ValueError(f"no maker {name}: there are {', '.join(MAKERS)}")
    path.parent.mkdir(parents=True, exist_ok=True)
    MAKERS[name](path, *map(int, numbers))


def _draw() -> np.random.Generator:
    return np.random.default_rng(7)


def _idx(folder: Path, train: int, test: int, packed: int = 0) -> None:
    """A folder of MNIST's files: images of 28×28 pixels, and labels. With `packed`, gzipped."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = _draw()
    for name, count in (("train", train), ("t10k", test)):
        images = draw.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = draw.integers(0, 10, count, dtype=np.uint8)
        for kind, dimensions, values in (("images", 3, images), ("labels", 1, labels)):
            head = struct.pack(f">HBB{dimensions}I", 0, 8, dimensions, *values.shape)
            file, content = f"{name}-{kind}-idx{dimensions}-ubyte", head + values.tobytes()
            if packed:
                (folder / f"{file}.gz").write_bytes(gzip.compress(content, 1, mtime=0))
            else:
                (folder / file).write_bytes(content)


def _cifar10(folder: Path, train: int, test: int) -> None:
    """The pickles of CIFAR-10's Python version: five batches, one for tests, the names."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(1, 6):
        _pickled(folder / f"data_batch_{number}", _cifar(train // 5, "labels", 10))
    _pickled(folder / "test_batch", _cifar(test, "labels", 10))
    _pickled(folder / "batches.meta", {"label_names": list(_LETTERS[:10])})


def _cifar100(folder: Path, train: int, test: int) -> None:
    """The pickles of CIFAR-100's Python version."""
    folder.mkdir(parents=True, exist_ok=True)
    _pickled(folder / "train", _cifar(train, "fine_labels", 100))
    _pickled(folder / "test", _cifar(test, "fine_labels", 100))
    _pickled(folder / "meta", {"fine_label_names": [str(number) for number in range(100)]})


def _cifar(count: int, labels: str, classes: int) -> dict[str, object]:
    draw = _draw()
    images = draw.integers(0, 256, (count, 3072), dtype=np.uint8)
    return {"data": images, labels: [int(one) for one in draw.integers(0, classes, count)]}


def _pickled(path: Path, content: object) -> None:
    path.write_bytes(pickle.dumps(content))


def _image(draw: np.random.Generator, width: int, height: int, path: Path) -> None:
    """A smooth picture with some noise: it packs about as well as a photograph."""
    from PIL import Image

    coarse = draw.integers(0, 256, (max(2, height // 16), max(2, width // 16), 3), dtype=np.uint8)
    picture = np.asarray(Image.fromarray(coarse).resize((width, height)), dtype=np.int16)
    noisy = picture + draw.integers(-12, 13, picture.shape, dtype=np.int16)
    Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(path)


def _images(folder: Path, count: int, side: int) -> None:
    """A folder of JPEG images."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = _draw()
    for number in range(count):
        _image(draw, side, side, folder / f"{number:05}.jpg")


def _imagefolder(folder: Path, classes: int, each: int, side: int) -> None:
    """A folder of JPEG images for every class."""
    for number in range(classes):
        _images(folder / f"class{number}", each, side)


def _masks(folder: Path, count: int, side: int) -> None:
    """`imgs` with JPEG images, `masks` with a GIF of two classes for each."""
    from PIL import Image

    _images(folder / "imgs", count, side)
    (folder / "masks").mkdir(exist_ok=True)
    draw = _draw()
    for number in range(count):
        shape = np.zeros((side, side), dtype=np.uint8)
        at = draw.integers(0, side // 2, 2)
        shape[at[0] : at[0] + side // 2, at[1] : at[1] + side // 2] = 255
        Image.fromarray(shape).convert("P").save(folder / "masks" / f"{number:05}.gif")


def _boxes(folder: Path, count: int, side: int, classes: int) -> None:
    """YOLO's folders: `images`, `labels` with a text of boxes each, and lists of the images."""
    draw = _draw()
    for part in ("train", "val"):
        _images(folder / "images" / part, count, side)
        (folder / "labels" / part).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            lines = []
            for _ in range(int(draw.integers(1, 6))):
                x, y = draw.uniform(0.3, 0.7, 2)
                width, height = draw.uniform(0.1, 0.5, 2)
                kind = draw.integers(0, classes)
                lines.append(f"{kind} {x:.4f} {y:.4f} {width:.4f} {height:.4f}\n")
            (folder / "labels" / part / f"{number:05}.txt").write_text("".join(lines))
        listed = sorted((folder / "images" / part).iterdir())
        (folder / f"{part}.txt").write_text("".join(f"{one.resolve()}\n" for one in listed))
    names = "".join(f"class{number}\n" for number in range(classes))
    (folder / "classes.names").write_text(names)


def _vocabulary() -> list[str]:
    draw = _draw()
    return ["".join(draw.choice(list(_LETTERS), int(draw.integers(2, 9)))) for _ in range(_WORDS)]


def _sentences(count: int, words: int) -> Iterator[list[str]]:
    """Words as frequent as in a language: the n-th most frequent 1/n times as often."""
    draw, vocabulary = _draw(), _vocabulary()
    shares = 1 / np.arange(1, _WORDS + 1)
    chosen = draw.choice(_WORDS, (count, words), p=shares / shares.sum())
    for row in chosen:
        yield [vocabulary[one] for one in row]


def _text(path: Path, lines: int, words: int) -> None:
    """A text file."""
    path.write_text("".join(" ".join(one) + "\n" for one in _sentences(lines, words)))


def _corpus(folder: Path, lines: int, words: int) -> None:
    """`train.txt`, `valid.txt` and `test.txt`."""
    folder.mkdir(parents=True, exist_ok=True)
    _text(folder / "train.txt", lines, words)
    for part in ("valid", "test"):
        _text(folder / f"{part}.txt", max(1, lines // 8), words)


def _tokens(folder: Path, count: int, kinds: int) -> None:
    """`train.bin` and `val.bin`: tokens as 16-bit numbers; `meta.pkl`: how many kinds there are."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = _draw()
    draw.integers(0, kinds, count, dtype=np.uint16).tofile(folder / "train.bin")
    draw.integers(0, kinds, count // 8, dtype=np.uint16).tofile(folder / "val.bin")
    _pickled(folder / "meta.pkl", {"vocab_size": kinds})


def _zipped_text(path: Path, count: int) -> None:
    """Bytes of text, gzipped."""
    text = " ".join(word for one in _sentences(count // 50 + 1, 10) for word in one)
    path.write_bytes(gzip.compress((text.encode() * 2)[:count].ljust(count), 1, mtime=0))


def _citations(folder: Path, papers: int, words: int, classes: int) -> None:
    """`cora.content`: papers with the words they have; `cora.cites`: which cites which."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = _draw()
    numbers = np.arange(1000, 1000 + papers)
    has = (draw.random((papers, words)) < 0.02).astype(int)
    with (folder / "cora.content").open("w") as file:
        for number, row in zip(numbers, has, strict=True):
            kind = f"kind{number % classes}"
            file.write("\t".join([str(number), *map(str, row), kind]) + "\n")
    pairs = draw.choice(numbers, (2 * papers, 2))
    (folder / "cora.cites").write_text("".join(f"{a}\t{b}\n" for a, b in pairs))


def _sines(path: Path, count: int, length: int) -> None:
    """A tensor file with one sine a row, each with a phase of its own."""
    import torch

    phases = _draw().integers(-80, 80, (count, 1))
    torch.save(np.sin((np.arange(length) + phases) / 20.0), path)


def _tokenizer(folder: Path, words: int) -> None:
    """A tokenizer of whole words, as `from_pretrained` reads it."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    known = {word: number for number, word in enumerate(dict.fromkeys(_vocabulary()[:words]))}
    known |= {"<unk>": len(known), "<end>": len(known) + 1}
    made = Tokenizer(models.WordLevel(known, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    whole = PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>", eos_token="<end>")
    whole.save_pretrained(folder)


def _yaml_boxes(path: Path, classes: int) -> None:
    """The table of a YOLO data set beside its folders `images` and `labels`."""
    names = ", ".join(f"class{number}" for number in range(classes))
    path.write_text(
        f"path: {path.parent.resolve()}\ntrain: images/train\nval: images/val\n"
        f"nc: {classes}\nnames: [{names}]\n"
    )


MAKERS: dict[str, Callable[..., None]] = {
    "idx": _idx,
    "cifar10": _cifar10,
    "cifar100": _cifar100,
    "images": _images,
    "imagefolder": _imagefolder,
    "masks": _masks,
    "boxes": _boxes,
    "boxes_yaml": _yaml_boxes,
    "text": _text,
    "corpus": _corpus,
    "tokens": _tokens,
    "zipped_text": _zipped_text,
    "citations": _citations,
    "sines": _sines,
    "tokenizer": _tokenizer,
}
