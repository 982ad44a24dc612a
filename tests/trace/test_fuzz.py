"""Mutated, cut and random traces end in a timeline or in one clear error, and soon."""

import gzip
import json
import random
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from plain import TRACES

from stepscope.record.errors import StepscopeError
from stepscope.record.timeline import NOTHING, Timeline
from stepscope.trace.kineto.read import read_kineto
from stepscope.trace.load import open_trace

SECONDS = 10.0  # of a processor; far more than any case needs
TOKENS = [
    *(b'"', b"{", b"}", b"[", b"]", b",", b":", b"\\", b"\n", b"\0", b"\x7f", b"\xff\xfe", b"-"),
    *(b"NaN", b"Infinity", b"null", b"true", b"1e999", b"1e-999", b"99999999999999999999999999"),
    *(b'"ph":"B"', b'"ph":"E"', b'"ts":0', b'"ts":-1', b'"dur":-5', b'"args":null', b'"args":[]'),
    *(b'{"ph":"X"}', b'},{"ph":"X",', b'"traceEvents":[', b'"traceEvents":', b'"\\ud800"'),
    *(b'"pid":{}', b'"cat":5', b'"name":null', b'"Bytes":"x"', b'"stream":[1]', b'"device":1.5'),
]


@cache
def seeds() -> list[bytes]:
    """A few dozen events of every recording that is not large, with their metadata."""
    texts = []
    for path in sorted(p for p in TRACES.glob("*.json.gz") if p.stat().st_size < 1_000_000):
        document = json.loads(gzip.decompress(path.read_bytes()))
        events = document["traceEvents"]
        document["traceEvents"] = events[:: max(1, len(events) // 40)][:40]
        document.pop("distributedInfo", None)
        texts.append(
            json.dumps(document, indent=random.Random(path.name).choice([None, 2])).encode()
        )
    return texts


def flip(random_: random.Random, text: bytearray) -> None:
    for _ in range(random_.choice([1, 1, 3, 30])):
        text[random_.randrange(len(text))] = random_.randrange(256)


def insert(random_: random.Random, text: bytearray) -> None:
    for _ in range(random_.choice([1, 2, 10])):
        at = random_.randrange(len(text))
        text[at:at] = random_.choice(TOKENS)


def replace(random_: random.Random, text: bytearray) -> None:
    """Put a token where a value or a key was."""
    for _ in range(random_.choice([1, 2, 10])):
        colon = text.find(b": ", random_.randrange(len(text)))
        end = min(text.find(mark, colon) % (len(text) + 1) for mark in (b",", b"}"))
        if 0 < colon < end:
            text[colon + 2 : end] = random_.choice(TOKENS)


def remove(random_: random.Random, text: bytearray) -> None:
    at = random_.randrange(len(text))
    del text[at : at + random_.choice([1, 1, 5, 100, 5000])]


def repeat(random_: random.Random, text: bytearray) -> None:
    begin = random_.randrange(len(text))
    piece = text[begin : begin + random_.choice([1, 50, 2000])]
    at = random_.randrange(len(text))
    text[at:at] = piece * random_.choice([1, 2, 5])


def cut(random_: random.Random, text: bytearray) -> None:
    del text[random_.randrange(len(text)) :]


MUTATIONS: list[Callable[[random.Random, bytearray], None]] = [
    flip,
    insert,
    replace,
    remove,
    repeat,
    cut,
]


def case(number: int) -> tuple[bytes, int]:
    """A file's content and the size of blocks to read it in."""
    random_ = random.Random(number)
    if number % 20 == 0:
        content = random_.randbytes(random_.randrange(3000))
        return random_.choice([b"", b"{", b'{"traceEvents":[', b"\x1f\x8b\x08"]) + content, 1 << 20
    text = bytearray(random_.choice(seeds()))
    for _ in range(random_.choice([1, 1, 2, 4])):
        if text:
            random_.choice(MUTATIONS)(random_, text)
    content = bytes(text)
    if number % 10 == 1:
        packed = bytearray(gzip.compress(content, 1))
        random_.choice([flip, cut, remove, repeat])(random_, packed)
        content = bytes(packed)
    return content, random_.choice([1 << 20, 1 << 20, 3000, 300])


def sound(timeline: Timeline) -> None:
    """What every analysis may rely on."""
    quality, host, device = timeline.quality, timeline.host, timeline.device
    left_out = sum(quality.dropped.values()) + sum(quality.ignored.values())
    assert quality.read == quality.kept + left_out
    assert quality.kept > 0
    for rows, lists in (
        (host, {"name": timeline.names, "thread": timeline.threads, "shapes": timeline.shapes}),
        (device, {"name": timeline.names, "stream": timeline.streams}),
    ):
        assert (np.diff(rows.start) >= 0).all()
        assert (rows.start >= 0).all()
        assert (rows.duration >= 0).all()
        for name, known in lists.items():
            column = getattr(rows, name)
            assert ((column >= NOTHING) & (column < len(known))).all()
    assert (host.parent < np.arange(len(host))).all()
    assert (device.launch < len(host)).all()
    assert timeline.span[0] == 0
    assert all(end <= timeline.span[1] for end in (*host.end.tolist(), *device.end.tolist()))
    json.dumps([*timeline.names, *quality.notes]).encode()


def check(numbers: range, folder: Path) -> int:
    """Reads every case; how many gave a timeline."""
    path = folder / "trace.json"
    read = 0
    refusals: list[str] = []
    for number in numbers:
        content, block_bytes = case(number)
        path.write_bytes(content)
        began = time.process_time()
        try:
            if block_bytes == 1 << 20:
                timeline = open_trace(path)
            else:
                timeline = read_kineto(path, processes=1, block_bytes=block_bytes)
        except StepscopeError as error:
            refusals.append(str(error))
        else:
            sound(timeline)
            read += 1
        assert time.process_time() - began < SECONDS, number
    assert not any("\n" in refusal for refusal in refusals)
    return read


def test_a_few_hundred_damaged_traces(tmp_path: Path) -> None:
    assert check(range(360), tmp_path) > 200


@pytest.mark.slow
@pytest.mark.parametrize("start", range(1000, 7000, 1000))
def test_thousands_of_damaged_traces(start: int, tmp_path: Path) -> None:
    assert check(range(start, start + 1000), tmp_path) > 500
