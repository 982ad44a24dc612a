"""A case of each kind: what a seed damages, and the command that reads it."""

import gzip
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fuzz.exports import damaged_counters, damaged_export
from fuzz.folders import damaged_result, damaged_run
from fuzz.traces import TRACES, damaged_trace


@dataclass(frozen=True, slots=True)
class Case:
    """A command, and what was done to what it reads."""

    arguments: list[str]
    damage: str


def make_case(kind: str, seed: int, place: Path) -> Case:
    """Damage something as the seed says, in a folder that cases of this process share."""
    (place / "out").mkdir(parents=True, exist_ok=True)
    return KINDS[kind](random.Random(f"{kind} {seed}"), place)


def _emptied(place: Path) -> Path:
    folder = place / "deep" / "er" / "trace"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _whole(place: Path) -> str:
    path = place / "whole.json"
    if not path.exists():
        packed = (TRACES / "cpu_only_rank34.pt.trace.json.gz").read_bytes()
        path.write_bytes(gzip.decompress(packed))
    return str(path)


def _trace_command(draw: random.Random, path: Path, place: Path) -> list[str]:
    trace, ways = str(path), draw.random()
    if ways < 0.7:
        return ["analyze", trace, *draw.choice([["--json"], ["--all"], []])]
    if ways < 0.74:
        exported = place / "out" / f"out{draw.choice(['.parquet', '.arrow'])}"
        return ["analyze", trace, "--export", str(exported), "--force"]
    if ways < 0.8:
        return ["analyze", trace, _whole(place), "--json"]
    if ways < 0.85:
        return ["analyze", str(path.parent), *draw.choice([["--json"], []])]
    if ways < 0.93:
        return draw.choice(list(_reports(trace, place)))
    return ["compare", *draw.choice([[trace, _whole(place)], [_whole(place), trace, "--json"]])]


def _reports(result: str, place: Path) -> Iterator[list[str]]:
    yield ["report", result, "-o", "-"]
    yield ["report", result, "-o", "-", "--format", "json", "--redact"]
    for ending in ("html", "md", "csv", "txt", "zip"):
        yield ["report", result, "-o", str(place / "out" / f"out.{ending}"), "--force"]


def _commands(folder: Path, other: Path, place: Path) -> Iterator[list[str]]:
    """Every way to read a folder."""
    result = str(folder)
    yield from _reports(result, place)
    yield ["report", result, "--force"]
    yield ["report", result, str(other), "-o", "-"]
    yield ["compare", result, str(other)]
    yield ["compare", str(other), result, "--json"]
    yield ["compare", result, result]
    yield ["compare", str(other), result, "--to", result, str(other)]


def run_commands(folder: Path, other: Path, place: Path) -> Iterator[list[str]]:
    """The same of a run, and what is for runs alone as often."""
    for option in ([], ["--json"], ["--all"]) * 3:
        yield ["show", str(folder), *option]
    yield ["analyze", str(folder)]
    yield from _commands(folder, other, place)


def _trace(draw: random.Random, place: Path) -> Case:
    path = damaged_trace(draw, _emptied(place))
    for number in range(draw.choice([0, 0, 1, 3])):  # other ranks, beside it
        damaged_trace(draw, path.parent, f"rank{number}.json")
    return Case(_trace_command(draw, path, place), str(path))


def _export(draw: random.Random, place: Path) -> Case:
    if draw.random() < 0.2:
        trace, counters = damaged_counters(draw, _emptied(place))
        option = draw.choice([["--json"], ["--all"]])
        return Case(["analyze", str(trace), "--ncu", str(counters), *option], str(counters))
    path = damaged_export(draw, _emptied(place))
    return Case(_trace_command(draw, path, place), str(path))


def _run(draw: random.Random, place: Path) -> Case:
    folder, whole, what = damaged_run(draw, place)
    return Case(draw.choice(list(run_commands(folder, whole, place))), what)


def _result(draw: random.Random, place: Path) -> Case:
    folder, whole, what = damaged_result(draw, place)
    documents = [path for path in folder.iterdir() if path.suffix == ".json" and path.is_file()]
    named = documents[0] if documents and draw.random() < 0.2 else folder
    return Case(draw.choice(list(_commands(named, whole, place))), what)


KINDS: dict[str, Callable[[random.Random, Path], Case]] = {
    "trace": _trace,
    "export": _export,
    "run": _run,
    "result": _result,
}
"""What is damaged: Kineto traces, Nsight's exports and counters, run folders, results."""
