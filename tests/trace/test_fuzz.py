"""Damaged traces and exports end in an answer or in one clear line, and what is read is sound."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
from fuzz.calls import verdict
from fuzz.case import KINDS, make_case
from fuzz.traces import damaged_trace

from stepscope.record.errors import StepscopeError
from stepscope.record.timeline import NOTHING, Timeline
from stepscope.trace.kineto.read import read_kineto

AT_ONCE = 20
"""Cases of one test."""


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


def read_soundly(seeds: range, folder: Path) -> int:
    """Read traces in blocks of several sizes; how many gave a timeline."""
    read, refusals = 0, ""
    for seed in seeds:
        draw = random.Random(f"sound {seed}")
        path = damaged_trace(draw, folder)
        size = draw.choice([1 << 20, 1 << 20, 3000, 300])
        try:
            timeline = read_kineto(path, processes=1, block_bytes=size)
        except StepscopeError as error:
            refusals += str(error)
        else:
            sound(timeline)
            read += 1
        if path.is_symlink() or not path.is_dir():
            path.unlink(missing_ok=True)
        else:
            path.rmdir()
    assert "\n" not in refusals
    return read


def test_what_is_read_of_damaged_traces_is_sound(tmp_path: Path) -> None:
    assert read_soundly(range(200), tmp_path) > 120


@pytest.mark.slow
@pytest.mark.parametrize("start", range(1000, 7000, 1000))
def test_what_is_read_of_thousands_of_damaged_traces_is_sound(start: int, tmp_path: Path) -> None:
    assert read_soundly(range(start, start + 1000), tmp_path) > 500


def made(kind: str, seed: int, place: Path) -> list[tuple[str, bytes]]:
    """What a case reads, but for the files of many gigabytes."""
    make_case(kind, seed, place)
    files = (path for path in sorted((place / "deep").rglob("*")) if path.is_file())
    return [(path.name, path.read_bytes()) for path in files if path.stat().st_size < 1 << 30]


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_makes_the_same_case_whatever_was_made_before(kind: str, tmp_path: Path) -> None:
    forward = [made(kind, seed, tmp_path) for seed in range(80)]
    backward = [made(kind, seed, tmp_path) for seed in reversed(range(80))]
    assert forward == backward[::-1]


def check(kind: str, block: int, place: Path) -> None:
    """Read the cases of a block by the commands that they name."""
    for seed in range(block * AT_ONCE, (block + 1) * AT_ONCE):
        case = make_case(kind, seed, place)
        ended = verdict(case.arguments, seconds=60)
        assert ended.problem is None, f"{kind} {seed}: {case}: {ended.problem}"


@pytest.mark.parametrize("block", range(5))
@pytest.mark.parametrize("kind", ["trace", "export"])
def test_a_damaged_recording_is_analysed_or_refused_in_a_line(
    kind: str, block: int, tmp_path: Path
) -> None:
    check(kind, block, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(5, 150))
@pytest.mark.parametrize("kind", ["trace", "export"])
def test_thousands_of_damaged_recordings_are(kind: str, block: int, tmp_path: Path) -> None:
    check(kind, block, tmp_path)
