"""Damaged folders: of a run, and of what tune, bench and batch leave."""

import json
import random
import shutil
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tokenize import TokenError

import msgspec
import numpy as np
from batch_world import World
from bench_documents import CPU_GPU, MEMORY, document, kernels_document, loader_document, point
from tune_documents import rung, tune_folder, tuned

from fuzz.traces import damaged_trace
from fuzz.values import damage_bytes, damage_document, replace_file
from stepscope.analyze.run.records import WINDOW_TRACE
from stepscope.batch.document import batch_result
from stepscope.batch.program import BatchRequest, search_program
from stepscope.launch.program import Program
from stepscope.store.json_file import LARGEST_DOCUMENT
from stepscope.store.table import HEADER_BYTES

sys.path.insert(0, str(Path(__file__).parents[2] / "causes"))

from recorded import ARCHIVES, unpack

RUNS = sorted(path.stem for path in ARCHIVES.glob("*.zip"))
"""One for each cause that a run can be slow for."""
_TEXTS = ("run.json", "facts.jsonl", "sources.json", "window.json", "memory-cpu.json")
_NUMBERS = (
    *(float("nan"), float("inf"), float("-inf"), -1.0, 0.0, -0.0, 0.5, 1e300, -1e300, 5e-324),
    *(2.0**31, 2.0**53, 2.0**63, -(2.0**63), 1e18, 1e19),
)
_OWNER = {"file": "/p/train.py", "line": 3, "function": "f", "detail": "", "bytes": 64, "count": 1}
_MEMORY = {"device": "cpu", "peak_bytes": 64, "at_peak": [_OWNER], "growth": [_OWNER]}
_STACKS = "thread (7): MainThread;<module> (/p/train.py:9);step (/p/train.py:4) 12\n"
_PLACE = {"file": "/p/train.py", "line": 3}
_FIXES: tuple[dict[str, object], ...] = (
    {"name": "workers", "state": "asked", "value": 4, "text": "no DataLoader"},
    {"name": "pin", "state": "asked", "value": None, "text": "no DataLoader"},
    {
        "name": "workers",
        "state": "applied",
        "kind": "exact",
        "text": "a loader",
        "record": {
            "target": "loader",
            "object": "DataLoader",
            "place": _PLACE,
            "before": 0,
            "after": 4,
            "varies": {"data": "draws", "because": {"what": "uses", "code": "x", "place": _PLACE}},
        },
    },
    {"name": "pin", "state": "not applicable", "text": "no", "record": {"reason": "no_cuda"}},
)


def unpacked(run: str, place: Path) -> Path:
    """A recorded run as a folder, unpacked once."""
    folder = place / "whole" / run
    if not folder.exists():
        unpack(ARCHIVES / f"{run}.zip", folder)
        (folder / "memory-cpu.json").write_text(json.dumps(_MEMORY))
        (folder / "python.txt").write_text(_STACKS)
        with open(folder / "facts.jsonl", "a") as facts:
            facts.writelines(f"{json.dumps({'fact': 'fix', **one})}\n" for one in _FIXES)
    return folder


def damaged_run(draw: random.Random, place: Path) -> tuple[Path, Path, str]:
    """A run with one thing damaged, or some, the whole one, and what was done."""
    whole = unpacked(draw.choice(RUNS), place)
    folder = place / "deep" / "er" / "damaged"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(whole, folder)
    done = [_damage_run(folder, draw) for _ in range(draw.choice((1, 1, 1, 1, 2, 3)))]
    return folder, whole, "; ".join(done)


def _damage_run(folder: Path, draw: random.Random) -> str:
    files = sorted(path for path in folder.iterdir() if path.is_file() and not path.is_symlink())
    files = [path for path in files if 0 < path.stat().st_size < LARGEST_DOCUMENT]
    path, kind = draw.choice(files), draw.random()
    if kind < 0.1:
        return replace_file(path, draw)
    if kind < 0.17:
        return damage_bytes(path, draw)
    if kind < 0.2:
        return _add_file(path, draw)
    if kind < 0.3:
        (folder / "window.json").unlink(missing_ok=True)  # what was made of the trace before
        (folder / WINDOW_TRACE).unlink(missing_ok=True)
        return f"{damaged_trace(draw, folder, WINDOW_TRACE)} is damaged"
    texts = [path for path in files if path.name in _TEXTS]
    try:
        if path.suffix == ".npy":
            return _damage_table(path, draw)
        return damage_document(path if path in texts else draw.choice(texts or files), draw)
    except (ValueError, RecursionError, TokenError) as unread:  # damaged before
        return f"{unread}"


def _add_file(path: Path, draw: random.Random) -> str:
    """The same again, by a name that the tool itself does not give."""
    names = (
        *("clock-0.npy", "clock--1.npy", "clock-9e9.npy", f"clock-{10**30}.npy", "clock-.npy"),
        *("a\nb.json", "\udcff.npy", "é" * 100, "-rf", " ", "window-2.json", "rows.npy.part"),
        *("report.html", "tune.json", "bench.json", "batch.json", "journal.jsonl", "x.sqlite"),
    )
    name = draw.choice(names)
    (path.parent / name).write_bytes(path.read_bytes())
    return f"{path.name} is there as {name!r} too"


def _damage_table(path: Path, draw: random.Random) -> str:
    """Other numbers in a table, or other columns."""
    data = bytearray(path.read_bytes())
    if draw.random() < 0.15:
        old, new = draw.choice(((b"_ns", b"_xx"), (b"<f8", b"<i8"), (b"('", b"(1"), (b"}", b" ")))
        data[:HEADER_BYTES] = data[:HEADER_BYTES].replace(old, new, draw.choice((1, 99)))
        path.write_bytes(data)
        return f"{path.name}: {new!r} for {old!r} in its header"
    names = [name for name, *_ in np.load(path).dtype.descr]
    cells = np.frombuffer(data, "<f8", offset=HEADER_BYTES).reshape(-1, len(names))
    column, value = draw.randrange(len(names)), draw.choice(_NUMBERS)
    rows = draw.choice((slice(None), slice(0, 1), slice(-1, None), [draw.randrange(len(cells))]))
    cells[rows, column] = value
    path.write_bytes(data)
    return f"{path.name}: {names[column]} of {rows} is {value}"


@cache
def _batch() -> bytes:
    world, request = World(), BatchRequest()
    found = search_program(request, world.run, world.look, lambda batch, got: None)
    program = Program("train.py", ("--epochs", "3"), False)
    return msgspec.json.encode(batch_result(found, request, program, "2026-01-01T00:00:00+00:00"))


def _tune(folder: Path) -> None:
    semantic = rung("batch=256", 1.1, 3.9, kind="semantic", changes=["batch_size"])
    compiled = rung("compile=default", 1.2, 3.6, compile_s=41.0, pays_after_steps=900)
    tune_folder(folder, tuned(rung("workers=8", 2.0, 2.0, 2.2), compiled, semantic))


def _grid(folder: Path) -> None:
    faster = point(fixes=["bf16"], mean_ms=10.0, ratio=2.0)
    slower = point(batch=64, fixes=["compile"], mean_ms=80.0, ratio=0.5, verdict="SLOWER")
    found = document(point(), faster, point(batch=64, mean_ms=35.0), slower)
    (folder / "bench.json").write_text(json.dumps(found))


def _bench(whole: dict[str, object]) -> Callable[[Path], object]:
    return lambda folder: (folder / "bench.json").write_text(json.dumps(whole))


RESULTS: dict[str, Callable[[Path], object]] = {
    "tune": _tune,
    "grid": _grid,
    "kernels": _bench(kernels_document()),
    "loader": _bench(loader_document()),
    "devices": _bench(document(study=CPU_GPU)),
    "techniques": _bench(document(study=MEMORY)),
    "batch": lambda folder: (folder / "batch.json").write_bytes(_batch()),
}


def whole_result(kind: str, place: Path) -> Path:
    """The result of a tune, a bench or a batch as a folder, written once."""
    folder = place / "whole" / kind
    if not folder.exists():
        folder.mkdir(parents=True)
        RESULTS[kind](folder)
    return folder


def damaged_result(draw: random.Random, place: Path) -> tuple[Path, Path, str]:
    """Such a result with one thing damaged, the whole one, and what was done."""
    whole = whole_result(draw.choice(list(RESULTS)), place)
    folder = place / "deep" / "er" / "result"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(whole, folder)
    path = draw.choice(sorted(folder.iterdir()))
    kind = draw.random()
    if kind < 0.08:
        what = replace_file(path, draw)
    elif kind < 0.16:
        what = damage_bytes(path, draw)
    else:
        what = damage_document(path, draw)
    return folder, whole, f"{whole.name}: {what}"
