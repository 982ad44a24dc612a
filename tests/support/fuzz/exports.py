"""Damaged output of Nsight: an SQLite export cut down to some rows, and counters as CSV."""

import csv
import gzip
import io
import json
import random
import sqlite3
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from fuzz.traces import TRACES
from fuzz.values import damage_bytes, replace_file

_EXPORT = TRACES / "h100_2gpu_1s.sqlite.gz"
_COUNTERS = TRACES / "h200_conv_gemm_softmax_raw.csv.gz"
_ROWS = 60
"""Of a table that are kept."""
_READ = (
    *("StringIds", "ThreadNames", "NVTX_EVENTS", "ANALYSIS_DETAILS", "ENUM_CUDA_MEM_KIND"),
    *("TARGET_INFO_SESSION_START_TIME", "TARGET_INFO_CUDA_DEVICE", "TARGET_INFO_GPU"),
    *("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY"),
    *("CUPTI_ACTIVITY_KIND_MEMSET", "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"),
    *("CUPTI_ACTIVITY_KIND_CUDA_EVENT", "CUPTI_ACTIVITY_KIND_OVERHEAD"),
)
_CELLS: tuple[Any, ...] = (
    *(None, 0, 1, -1, 2**31, 2**32 - 1, 2**61, 2**61 - 1, 2**62, 2**63 - 1, -(2**63), 0.5, 1e308),
    *(float("inf"), "", "x", "7", "é" * 2000, b"\xff\xfe", b"", "\0", "aten::mm, seq = 7"),
    *("aten::mm, seq = 99999999999999999999, op_id = x, sizes = [[", "a" * 100_000),
    *("Optimizer.step#SGD.step", "ProfilerStep#1", "iteration 1"),
)


@cache
def _small_export(encoding: str) -> bytes:
    """The recorded export with a few rows of each table, neighbours in time."""
    with tempfile.TemporaryDirectory() as folder:
        path, small = Path(folder) / "whole.sqlite", Path(folder) / "small.sqlite"
        path.write_bytes(gzip.decompress(_EXPORT.read_bytes()))
        with sqlite3.connect(path) as database:
            found = "select name, sql from sqlite_master where type = 'table'"
            for name, _ in database.execute(found).fetchall():
                if name not in _READ:
                    database.execute(f'drop table "{name}"')
                elif name != "StringIds":
                    database.execute(f'delete from "{name}" where rowid > {_ROWS}')
        written = sqlite3.connect(small)
        written.execute(f"pragma encoding = '{encoding}'")
        written.executescript("\n".join(database.iterdump()))
        written.close()
        database.close()
        return small.read_bytes()


def damaged_export(draw: random.Random, folder: Path) -> Path:
    """A damaged SQLite export in a folder."""
    path = folder / "trace.sqlite"
    path.write_bytes(_small_export(draw.choice(["UTF-8"] * 9 + ["UTF-16le"])))
    kind = draw.random()
    if kind < 0.02:
        replace_file(path, draw)
    elif kind < 0.3:
        damage_bytes(path, draw)
    else:
        database = sqlite3.connect(path)
        with database:
            for _ in range(draw.choice([1, 1, 2, 5])):
                _change(draw, database)
        database.close()
        if kind > 0.95:
            damage_bytes(path, draw)
    return path


def _change(draw: random.Random, database: sqlite3.Connection) -> None:
    found = database.execute("select name from sqlite_master where type = 'table'").fetchall()
    table = draw.choice([name for (name,) in found] or ["none"])
    columns = [row[1] for row in database.execute(f'pragma table_info("{table}")')]
    if not columns:
        return
    column, what = draw.choice(columns), draw.random()
    try:
        if what < 0.2:  # what another column has, or the same moved
            other, by = draw.choice(columns), draw.choice([0, 1, -1, 10**9, 10**18, -(10**9)])
            some = draw.choice(["", "where rowid % 2", f"where rowid > {draw.randrange(_ROWS)}"])
            database.execute(f'update "{table}" set "{column}" = "{other}" + {by} {some}')
        elif what < 0.6:
            some = draw.choice(["", "where rowid = 1", f"where rowid % 7 = {draw.randrange(7)}"])
            sql = f'update "{table}" set "{column}" = ? {some}'
            database.execute(sql, (draw.choice(_CELLS),))
        elif what < 0.65:
            database.execute(f'drop table "{table}"')
        elif what < 0.72:
            database.execute(f'alter table "{table}" drop column "{column}"')
        elif what < 0.76:
            database.execute(f'alter table "{table}" rename column "{column}" to "x y"')
        elif what < 0.8:
            database.execute(f'alter table "{table}" rename to "{draw.choice(_READ)}"')
        elif what < 0.85:
            database.execute(f'delete from "{table}"')
        elif what < 0.88:  # a column that is computed, and long
            database.execute(f'alter table "{table}" drop column "{column}"')
            made = draw.choice(["zeroblob(900000)", "printf('%.*c', 99999999, 'x')", "rowid"])
            database.execute(f'alter table "{table}" add column "{column}" as ({made})')
        elif what < 0.91:
            database.execute(f'alter table "{table}" rename to hidden')
            database.execute(f'create view "{table}" as select * from hidden')
        else:
            others = ", ".join(f'"{one}"' for one in columns if one != "id")
            for _ in range(draw.choice([1, 3, 5])):  # twice as many rows each time
                sql = f'insert into "{table}" ({others}) select {others} from "{table}"'
                database.execute(sql)
    except sqlite3.Error:  # what the schema forbids stays as it is
        pass


@cache
def _counters() -> str:
    return gzip.decompress(_COUNTERS.read_bytes()).decode()


@cache
def _counted_trace() -> str:
    """A trace of the kernels that the counters are of."""
    lines = [line for line in _counters().splitlines() if not line.startswith("==")]
    rows = list(csv.DictReader(io.StringIO("\n".join(lines))))[1:]
    events = [
        {
            "ph": "X",
            "cat": "kernel",
            "name": row["Kernel Name"],
            "ts": 100.0 * number,
            "dur": 50.0,
            "args": {
                "device": 0,
                "stream": 7,
                "grid": json.loads(row["Grid Size"].replace("(", "[").replace(")", "]")),
                "block": json.loads(row["Block Size"].replace("(", "[").replace(")", "]")),
            },
        }
        for number, row in enumerate(rows)
    ]
    return json.dumps({"traceEvents": events})


_PRINTED = (
    *("", "nan", "inf", "-1", "1e400", "9" * 400, "1.234,5", "62,50", "1,234", "x", "(1, 2)"),
    *('a"b', "-0", "1e308", "n/a", "(9999999999, 1, 1)", "ns", "Gbyte/second", "\0", "é" * 99),
)


def damaged_counters(draw: random.Random, folder: Path) -> tuple[Path, Path]:
    """A trace, and the damaged counters of its kernels."""
    trace, path = folder / "trace.json", folder / "counters.csv"
    trace.write_text(_counted_trace())
    lines = _counters().splitlines()
    header = next(number for number, line in enumerate(lines) if line.startswith('"ID"'))
    for _ in range(draw.choice([1, 1, 3, 10])):
        number = draw.choice([header, header, header + 1, draw.randrange(len(lines))])
        cells = next(csv.reader([lines[number]]), [])
        for _ in range(draw.choice([1, 3, 50])):
            if cells:
                # The first cells say what is counted, the last how much.
                at = draw.choice([draw.randrange(min(11, len(cells))), draw.randrange(len(cells))])
                cells[at] = draw.choice(_PRINTED)
        written = io.StringIO()
        csv.writer(written, quoting=csv.QUOTE_ALL, delimiter=draw.choice(",,,,;\t")).writerow(cells)
        lines[number] = written.getvalue().rstrip("\r\n")
    encoding = draw.choice(["utf-8"] * 8 + ["utf-16", "utf-8-sig", "latin-1"])
    path.write_bytes("\n".join(lines).encode(encoding, "replace"))
    kind = draw.random()
    if kind < 0.05:
        replace_file(path, draw)
    elif kind < 0.2:
        damage_bytes(path, draw)
    return trace, path
