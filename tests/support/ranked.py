"""Folders of runs with several ranks, made by hand. Ranks step together: in backward each waits
until the last one has come. Times are milliseconds."""

import math
import random
from collections.abc import Callable
from pathlib import Path

from stepscope.record.facts import (
    ConfigFact,
    Distributed,
    EndFact,
    ModelConfig,
    ProcessFact,
    ProgramError,
    RankFact,
    SiteFact,
    SiteKind,
    Switches,
)
from stepscope.record.row_log import (
    FLAG_UNCLOCKED,
    MEETING_COLUMNS,
    MEETINGS_FILE,
    RANKS_FOLDER,
    ROW_COLUMNS,
    SITE_COLUMNS,
    MeetingKind,
    RowKind,
)
from stepscope.record.run import RUN_SCHEMA, RunInfo, RunRecord
from stepscope.store.folder import write_run
from stepscope.store.json_lines import FactLog
from stepscope.store.table import Table

MS = 1e6
BEGIN = 1_000_000 * MS
USUAL = {"data_wait": 2.0, "forward": 6.0, "backward": 10.0, "optimizer": 1.0, "other": 1.0}
COMMUNICATION = 2.0
LINES = {SiteKind.DATA_WAIT: 31, SiteKind.FORWARD: 33, SiteKind.BACKWARD: 34, SiteKind.SAVE: 40}

Extra = Callable[[int, int], dict[str, float]]
"""What parts of a step take longer, by rank and step from 0."""


def ranked_run(
    folder: Path,
    ranks: int = 4,
    steps: int = 80,
    extra: Extra = lambda rank, step: {},
    noise: float = 0.03,
    seed: int = 0,
    cores: int = 8,
    clocked: bool = True,
    same_data: bool = False,
) -> Path:
    """A whole run. `clocked`: whether phases are known of each step, not of every fourth."""
    chance = random.Random(seed)
    logs = [_Rank(folder, rank, ranks) for rank in range(ranks)]
    now = [BEGIN] * ranks
    for step in range(steps):
        parts = [
            {
                name: ms * (1 + noise * chance.gauss(0, 1)) + extra(rank, step).get(name, 0.0)
                for name, ms in USUAL.items()
            }
            for rank in range(ranks)
        ]
        begun = [
            now[rank] + MS * sum(one[name] for name in ("other", "data_wait", "forward"))
            for rank, one in enumerate(parts)
        ]
        arrived = [at + MS * one["backward"] for at, one in zip(begun, parts, strict=True)]
        for rank, one in enumerate(parts):
            left = max(arrived) + MS * COMMUNICATION
            end = left + MS * one["optimizer"]
            logs[rank].meet(begun[rank], arrived[rank], left)
            known = clocked or step % 4 == 0 or step < 8
            shown = {**one, "backward": (left - begun[rank]) / MS}
            logs[rank].step(end, shown, known, 1 / (1 + step) + (0.0 if same_data else rank))
            saved = extra(rank, step).get("checkpoint", 0.0)
            now[rank] = end + MS * saved
            if saved:
                logs[rank].save(now[rank], saved)
    for log in logs:
        log.close()
    info = RunInfo(
        id=folder.name,
        program="torchrun",
        argv=["--nproc-per-node", str(ranks), "train.py"],
        exit_code=0,
        started_ns=int(BEGIN - 1000 * MS),
        ended_ns=int(max(now) + 10 * MS),
    )
    write_run(
        folder, RunRecord(schema=RUN_SCHEMA, run=info, machine={"cpu": {"usable_cores": cores}})
    )
    return folder


class _Rank:
    """The folder of one rank."""

    def __init__(self, run: Path, rank: int, ranks: int) -> None:
        self.folder = run / RANKS_FOLDER / str(rank)
        self.folder.mkdir(parents=True)
        self._facts = FactLog(self.folder / "facts.jsonl")
        booted = int(BEGIN - 500 * MS)
        told = (
            RankFact(rank=rank, world_size=ranks, pid=100 + rank, program="train.py", joined=True),
            ProcessFact(booted_ns=booted, torch="2.13.0", python="3.11"),
            ConfigFact(
                models=[
                    ModelConfig(
                        name="Net", devices=["cpu"], dtypes={"float32": 4}, trainable=4, ddp=True
                    )
                ],
                switches=Switches(threads=1),
                distributed=Distributed(world_size=ranks, backend="gloo"),
            ),
            *(
                SiteFact(id=number, kind=kind, file="/home/me/train.py", line=line, function="main")
                for number, (kind, line) in enumerate(LINES.items())
            ),
        )
        for fact in told:
            self._facts.write(fact)
        self._rows = Table(self.folder / "rows.npy", ROW_COLUMNS)
        self._meetings = Table(self.folder / MEETINGS_FILE, MEETING_COLUMNS)
        self._sites = Table(self.folder / "sites.npy", SITE_COLUMNS)
        for number in range(len(LINES)):
            self._sites.cells[number * self._sites.width] = 1.0
        self._counts = [0, 0]

    def meet(self, begun: float, arrived: float, left: float) -> None:
        numbers = (begun, arrived, left, MeetingKind.GRADIENTS, 0, 0, 0, -1, 0)
        self._write(self._meetings, 1, numbers)

    def step(self, end: float, parts: dict[str, float], known: bool, loss: float) -> None:
        values = {f"{name}_ns": ms * MS for name, ms in parts.items()}
        counted = {"samples": 32.0, "batches": 1.0, "forwards": 1.0, "backwards": 1.0, "loss": loss}
        if not known:
            hidden = ("forward", "backward", "optimizer", "other", "h2d", "wait")
            values |= dict.fromkeys((f"{name}_ns" for name in hidden), math.nan)
            counted |= {"forwards": math.nan, "inputs": math.nan, "flags": FLAG_UNCLOCKED}
        self._row(end, RowKind.STEP, values | counted)

    def save(self, end: float, ms: float) -> None:
        self._row(end, RowKind.SAVE, {"save_ns": ms * MS})

    def _row(self, end: float, kind: RowKind, values: dict[str, float]) -> None:
        made = dict.fromkeys(ROW_COLUMNS, 0.0) | values | {"end_ns": end, "kind": float(kind)}
        made |= {name: math.nan for name in ROW_COLUMNS if name.startswith("device_")}
        self._write(self._rows, 0, tuple(made[name] for name in ROW_COLUMNS))

    def _write(self, table: Table, which: int, numbers: tuple[float, ...]) -> None:
        row = self._counts[which]
        if row == table.rows:
            table.grow()
        for place, number in enumerate(numbers, row * table.width):
            table.cells[place] = number
        self._counts[which] += 1

    def close(self) -> None:
        self._rows.close(self._counts[0])
        self._meetings.close(self._counts[1])
        self._sites.close(len(LINES))
        self._facts.write(EndFact(steps=self._counts[0]))
        self._facts.close()


def without_end(run: Path, rank: int, error: ProgramError | None = None) -> None:
    """Have a rank end without a word, or in an error."""
    path = run / RANKS_FOLDER / str(rank) / "facts.jsonl"
    lines = [line for line in path.read_text().splitlines() if '"fact": "end"' not in line]
    path.write_text("\n".join([*lines, ""]))
    if error is not None:
        log = FactLog(path)
        log.write(EndFact(steps=1, error=error))
        log.close()


def never_left(run: Path, rank: int) -> None:
    """Have a rank stand in its last meeting for ever."""
    path = run / RANKS_FOLDER / str(rank) / MEETINGS_FILE
    width = len(MEETING_COLUMNS)
    at = path.stat().st_size - 8 * (width - MEETING_COLUMNS.index("left_ns"))
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(bytes(8))
