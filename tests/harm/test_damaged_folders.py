"""Run folders with one thing damaged: every reader shows what is left or says in a line what is
wrong, at once and in little memory. Each case is made by a seed.
"""

import contextlib
import io
import json
import os
import random
import resource
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepscope.cli.main import main
from stepscope.diagnose.ranking import ranked
from stepscope.record.errors import UsageError
from stepscope.record.finding import Finding
from stepscope.store.folder import find_run
from stepscope.store.table import HEADER_BYTES

CAUSES = Path(__file__).parents[1] / "causes"
sys.path.insert(0, str(CAUSES))

from recorded import ARCHIVES, unpack  # noqa: E402

RUNS = ("graph_breaks", "loader_bound_cuda", "too_few_workers", "evaluation_too_often")
TEXTS = ("run.json", "facts.jsonl", "sources.json", "window.json", "memory-cpu.json")
AT_ONCE = 5
"""Cases of one test."""
QUICK, SLOW = 60, 1200
"""Tests of that many cases."""
LONGEST_S = 60
LARGEST = 1 << 30
"""Bytes a reader may take beyond what the process has."""

NESTED = "<nested>"
VALUES: tuple[Any, ...] = (
    *(None, True, 0, -1, 2**31, 2**63, 2**64, -(2**63), 10**400, 0.5, -0.0, 1e-320, 1e308),
    *(float("nan"), float("inf"), float("-inf"), "", "x", "../../../x", "/dev/zero", "\0"),
    *("\ud800", "a" * 100_000, "\x1b[2J\n\r", "1e5"),
    *([], [[]], [None], ["x"], [1, "x"], {}, {"": None}),
    *({"x": {"x": 1}}, [{}], NESTED),
)  # fmt: skip
NUMBERS = (
    *(float("nan"), float("inf"), float("-inf"), -1.0, 0.0, -0.0, 0.5, 1e300, -1e300, 5e-324),
    *(2.0**31, 2.0**53, 2.0**63, -(2.0**63), 1e18, 1e19),
)
OWNER = {"file": "/p/train.py", "line": 3, "function": "f", "detail": "", "bytes": 64, "count": 1}
MEMORY = {"device": "cpu", "peak_bytes": 64, "at_peak": [OWNER], "growth": [OWNER]}
STACKS = "thread (7): MainThread;<module> (/p/train.py:9);step (/p/train.py:4) 12\n"
PLACE = {"file": "/p/train.py", "line": 3}
FIXES: tuple[dict[str, object], ...] = (
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
            "place": PLACE,
            "before": 0,
            "after": 4,
            "varies": {"data": "draws", "because": {"what": "uses", "code": "x", "place": PLACE}},
        },
    },
    {"name": "pin", "state": "not applicable", "text": "no", "record": {"reason": "no_cuda"}},
)
_DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize("run", RUNS)
def test_whole_folders_are_shown(run: str, tmp_path: Path) -> None:
    folder = unpacked(run, tmp_path)
    (tmp_path / "out").mkdir()
    for arguments in commands(folder, folder, tmp_path):
        assert called(arguments)[0] == 0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return unpacked("loader_bound_cuda", tmp_path)


def refusal(folder: Path) -> str:
    """The line with which a folder is refused."""
    code, _, errors = called(["show", str(folder)])
    assert (code, len(errors.splitlines())) == (2, 1), errors
    return errors


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1e300])
@pytest.mark.parametrize("column", ["end_ns", "forward_ns", "kind", "samples"])
def test_an_impossible_number_in_a_table_is_named(folder: Path, column: str, value: float) -> None:
    set_cell(folder / "rows.npy", column, 3, value)
    assert f"rows.npy is damaged: {column} of row 4 is {value:g}" in refusal(folder)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1e300])
def test_any_loss_is_shown(folder: Path, value: float) -> None:
    set_cell(folder / "rows.npy", "loss", 3, value)
    assert called(["show", str(folder), "--json"])[0] == 0


def test_times_too_short_to_divide_by_are_refused(folder: Path) -> None:
    for slot in range(len(np.load(folder / "clock-916.npy"))):
        set_cell(folder / "clock-916.npy", "total_ns", slot, 5e-324)
    assert "Number out of range - at `$.pipeline[0]" in refusal(folder)


@pytest.mark.parametrize("name", ["rows.npy", "facts.jsonl", "memory-cpu.json", "clock-916.npy"])
@pytest.mark.parametrize("kind", ["folder", "fifo", "device", "loop", "sparse"])
def test_what_is_no_plain_file_is_named_and_not_read(folder: Path, name: str, kind: str) -> None:
    path = folder / name
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "sparse":
        path.touch()
        os.truncate(path, 20 << 30)
    else:
        path.symlink_to("/dev/zero" if kind == "device" else path)
    assert name in refusal(folder)


@pytest.mark.parametrize("value", ["../../../x", "/tmp/x", "..", ".", "a/b", "\0", "x" * 5000])
def test_an_id_that_is_no_name_is_refused(folder: Path, value: str) -> None:
    set_value(folder / "run.json", ["run", "id"], value)
    assert "run.json is not a run of stepscope: Expected a name - at `$.run.id`" in refusal(folder)


@pytest.mark.parametrize(
    ("where", "value", "said"),
    [
        (["run", "exit_code"], "x", "Expected `int | null`, got `str` - at `$.exit_code`"),
        (["run", "started_ns"], float("inf"), "Number out of range - at `$.run.started_ns`"),
        (["machine", "gpus"], 7, "its machine: Expected `array`, got `int` - at `$.gpus`"),
        (["machine", "cpu", "usable_cores"], 10**400, "out of range - at `$.machine.cpu.usable"),
        (["environment"], NESTED, "nested too deeply"),
    ],
)
def test_a_wrong_value_in_run_json_is_named(
    folder: Path, where: list[str], value: object, said: str
) -> None:
    set_value(folder / "run.json", where, value)
    told = refusal(folder)
    assert "run.json" in told
    assert said in told


@pytest.mark.parametrize("key", ["id", "program", "argv", "started", "torch", "pid", "started_ns"])
def test_what_run_json_does_not_say_is_not_shown(folder: Path, key: str) -> None:
    set_value(folder / "run.json", ["run", key], None)
    assert called(["show", str(folder), "--all"])[0] == 0


def test_a_wrong_value_in_the_facts_is_named_with_its_line(folder: Path) -> None:
    with open(folder / "facts.jsonl", "a") as facts:
        facts.write('{"fact": "batch", "bytes": 1e999}\n')
    last = len((folder / "facts.jsonl").read_bytes().splitlines())
    assert f"facts.jsonl, line {last}: Number out of range - at `$.bytes`" in refusal(folder)


@pytest.mark.parametrize("kept", ["window.json", "loader_bound_cuda.html"])
def test_nothing_is_written_through_a_link(folder: Path, tmp_path: Path, kept: str) -> None:
    """Of someone else's folder, to where it leads."""
    mine = tmp_path / "mine"
    mine.write_text("mine")
    (folder / kept).unlink(missing_ok=True)
    (folder / kept).symlink_to(mine)
    set_value(folder / "run.json", ["run", "id"], "loader_bound_cuda")
    called(["report", str(folder), "--force"])
    assert mine.read_text() == "mine"


def test_a_run_that_vanished_is_not_the_last_one(tmp_path: Path) -> None:
    gone = tmp_path / ".stepscope" / "gone"
    gone.mkdir(parents=True)
    (gone / "run.json").symlink_to("/nowhere")
    with pytest.raises(UsageError, match="no runs"):
        find_run(None, tmp_path)


@pytest.mark.parametrize("share", [-1.0, float("nan")])
def test_findings_of_impossible_shares_are_ranked_too(share: float) -> None:
    one = Finding(id="a.b", title="", why="", advice="", share=share)
    assert len(ranked([one, one])) == 2


@pytest.mark.parametrize("block", range(QUICK))
def test_a_damaged_folder_is_shown_or_refused_in_a_line(block: int, tmp_path: Path) -> None:
    for seed in range(block * AT_ONCE, (block + 1) * AT_ONCE):
        check(seed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(QUICK, SLOW))
def test_thousands_of_damaged_folders_are(block: int, tmp_path: Path) -> None:
    for seed in range(block * AT_ONCE, (block + 1) * AT_ONCE):
        check(seed, tmp_path)


def check(seed: int, place: Path) -> None:
    """Damage a run as the seed says, and read it by one command."""
    draw = random.Random(seed)
    whole = unpacked(draw.choice(RUNS), place)
    folder = place / "deep" / "er" / "damaged"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(whole, folder)
    what = damage(folder, draw)
    arguments = draw.choice(list(commands(folder, whole, place)))
    apart = (folder, place / "out")
    apart[1].mkdir(exist_ok=True)
    before = everything(place, apart)
    code, printed, errors = called(arguments)
    said = f"seed {seed}: {what}; {arguments}: {errors[-2000:]}"
    assert code in (0, 2), said
    assert "Traceback" not in printed + errors, said
    assert "Warning" not in errors, said
    if code == 2:
        assert len(errors.splitlines()) == 1, said
        assert errors.startswith("stepscope: "), said
        assert len(errors) < 1100, said
    assert everything(place, apart) - before == set(), said


def commands(folder: Path, other: Path, place: Path) -> Iterator[list[str]]:
    """Every way to read a folder."""
    run = str(folder)
    yield ["show", run]
    yield ["show", run, "--json"]
    yield ["show", run, "--all"]
    yield ["report", run, "-o", "-"]
    yield ["report", run, "-o", "-", "--format", "json", "--redact"]
    for ending in ("html", "md", "csv"):
        yield ["report", run, "-o", str(place / "out" / f"out.{ending}"), "--force"]
    yield ["report", run, "--force"]
    yield ["compare", run, str(other)]
    yield ["compare", str(other), run, "--json"]


def called(arguments: list[str]) -> tuple[object, str, str]:
    """Its exit code and what it printed; an exception, a hang or too much memory fails."""
    out, errors = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(errors),
        limited(LONGEST_S, LARGEST),
    ):
        try:
            main(arguments)
        except SystemExit as done:
            return done.code, *(one.buffer.getvalue().decode() for one in (out, errors))
    raise AssertionError("main returned")


@contextlib.contextmanager
def limited(seconds: int, size: int) -> Iterator[None]:
    """Raises where something takes longer or asks for more memory."""

    def late(*_: object) -> None:
        raise TimeoutError(f"not done after {seconds} s")

    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    old = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    resource.setrlimit(resource.RLIMIT_AS, (used + size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.alarm(0)
        signal.signal(signal.SIGALRM, old)


def unpacked(run: str, place: Path) -> Path:
    """A recorded run as a folder, unpacked once a test."""
    folder = place / "whole" / run
    if not folder.exists():
        unpack(ARCHIVES / f"{run}.zip", folder)
        (folder / "memory-cpu.json").write_text(json.dumps(MEMORY))
        (folder / "python.txt").write_text(STACKS)
        with open(folder / "facts.jsonl", "a") as facts:
            facts.writelines(f"{json.dumps({'fact': 'fix', **one})}\n" for one in FIXES)
    return folder


def everything(place: Path, apart: tuple[Path, ...]) -> set[Path]:
    """All files but those of some folders."""
    return {path for path in place.rglob("*") if not {*apart} & {*path.parents}}


def damage(folder: Path, draw: random.Random) -> str:
    """Damage one thing; what was done, in words."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    if draw.random() < 0.12:
        return replace_file(draw.choice(files), draw)
    path = draw.choice(files)
    if draw.random() < 0.08:
        return damage_bytes(path, draw)
    if path.suffix == ".npy":
        return damage_table(path, draw)
    texts = [path for path in files if path.name in TEXTS]
    return damage_value(path if path in texts else draw.choice(texts), draw)


def replace_file(path: Path, draw: random.Random) -> str:
    """Something else where a file was."""
    size = path.stat().st_size
    path.unlink()

    def sparse() -> None:
        path.touch()
        os.truncate(path, 20 << 30)

    kinds: dict[str, Callable[[], object]] = {
        "nothing": lambda: None,
        "an empty file": path.touch,
        "a folder": path.mkdir,
        "a FIFO": lambda: os.mkfifo(path),
        "a link to /dev/zero": lambda: path.symlink_to("/dev/zero"),
        "a link to itself": lambda: path.symlink_to(path),
        "a dangling link": lambda: path.symlink_to("/nowhere"),
        "20 GiB of nothing": sparse,
        "zeros": lambda: path.write_bytes(bytes(size)),
        "noise": lambda: path.write_bytes(draw.randbytes(size)),
        "deep lists": lambda: path.write_text(_DEEP),
        "an empty object": lambda: path.write_text("{}"),
        "another language": lambda: path.write_bytes("{\"schéma\": 1}".encode("utf-16")),
    }  # fmt: skip
    kind = draw.choice(list(kinds))
    kinds[kind]()
    return f"{path.name} is {kind}"


def damage_bytes(path: Path, draw: random.Random) -> str:
    """Cut a file off, or change some bytes."""
    data = bytearray(path.read_bytes())
    if draw.random() < 0.4:
        end = draw.randrange(len(data))
        path.write_bytes(data[:end])
        return f"{path.name} is cut off at byte {end}"
    at = [draw.randrange(len(data)) for _ in range(draw.choice((1, 1, 3, 30)))]
    for one in at:
        data[one] = draw.randrange(256)
    path.write_bytes(data)
    return f"{path.name} has other bytes at {at}"


def damage_table(path: Path, draw: random.Random) -> str:
    """Other numbers in a table, or other columns."""
    data = bytearray(path.read_bytes())
    if draw.random() < 0.15:
        old, new = draw.choice(((b"_ns", b"_xx"), (b"<f8", b"<i8"), (b"('", b"(1"), (b"}", b" ")))
        data[:HEADER_BYTES] = data[:HEADER_BYTES].replace(old, new, draw.choice((1, 99)))
        path.write_bytes(data)
        return f"{path.name}: {new!r} for {old!r} in its header"
    names = [name for name, _ in np.load(path).dtype.descr]
    cells = np.frombuffer(data, "<f8", offset=HEADER_BYTES).reshape(-1, len(names))
    column, value = draw.randrange(len(names)), draw.choice(NUMBERS)
    rows = draw.choice((slice(None), slice(0, 1), slice(-1, None), [draw.randrange(len(cells))]))
    cells[rows, column] = value
    path.write_bytes(data)
    return f"{path.name}: {names[column]} of {rows} is {value}"


def damage_value(path: Path, draw: random.Random) -> str:
    """Another value, or none, in a JSON document or in one of its lines."""
    lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    number = draw.randrange(len(lines))
    document = json.loads(lines[number])
    parent, key, where = document, "", []
    while isinstance(parent, dict | list) and parent:
        key = draw.choice(list(parent) if isinstance(parent, dict) else range(len(parent)))
        where.append(key)
        if not isinstance(parent[key], dict | list) or not parent[key] or draw.random() < 0.15:
            break
        parent = parent[key]
    if draw.random() < 0.1:
        value = "<gone>"
        del parent[key]
    else:
        parent[key] = value = draw.choice(VALUES)
    lines[number] = json.dumps(document).replace(json.dumps(NESTED), _DEEP)
    path.write_text("\n".join(lines) + "\n")
    return f"{path.name}, line {number + 1}: {where} is {str(value)[:40]!r}"


def set_cell(path: Path, column: str, row: int, value: float) -> None:
    """Put a number into a table."""
    table = np.load(path)
    table[column][row] = value
    path.write_bytes(path.read_bytes()[:HEADER_BYTES] + table.tobytes())


def set_value(path: Path, where: list[str], value: object) -> None:
    """Put a value into a JSON document."""
    document = parent = json.loads(path.read_text())
    for key in where[:-1]:
        parent = parent[key]
    parent[where[-1]] = value
    path.write_text(json.dumps(document).replace(json.dumps(NESTED), _DEEP))
