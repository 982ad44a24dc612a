"""A timeline as one Parquet or Arrow table, for DuckDB, polars or pandas.

Each row is an event of the host or of a device; synchronisations and memory are not in it.
`id` counts through the file, `parent_id` and `launch_id` refer to it. NULL is "not known". No
column has a name that SQL reserves.
"""

import os
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from stepscope.record.errors import MissingExtra, StepscopeError, UsageError
from stepscope.record.timeline import (
    NOTHING,
    DeviceEvents,
    DeviceKind,
    HostEvents,
    HostKind,
    Timeline,
)

_ROWS = 131_072  # written at a time, and a row group of their own
_INT64 = 2**63

# Columns by what a timeline interns: the events' column of indices, the timeline's list they
# point into, and the field of an item of it ("": the item itself).
_TEXTS: dict[str, tuple[str, str, str]] = {
    "name": ("name", "names", ""),
    "process": ("thread", "threads", "pid"),
    "thread": ("thread", "threads", "tid"),
    "thread_name": ("thread", "threads", "name"),
    "stream": ("stream", "streams", "stream"),
    **{f"input_{n}": ("shapes", "shapes", n) for n in ("dims", "types", "strides", "values")},
    "collective": ("collective", "collectives", "name"),
    "collective_dtype": ("collective", "collectives", "dtype"),
}
_GEOMETRY = ("grid", "block", "registers", "shared_bytes", "occupancy")
_ELEMENTS = ("in_elements", "out_elements", "group_size")
_NUMBERS: dict[str, tuple[str, str, str]] = {
    "device": ("stream", "streams", "device"),
    **{name: ("geometry", "geometries", name) for name in _GEOMETRY},
    **{name: ("collective", "collectives", name) for name in _ELEMENTS},
}
_COLUMNS = (
    *("id", "source", "rank", "place", "kind", "name", "start_ns", "relative_ns", "duration_ns"),
    *("process", "thread", "thread_name", "device", "stream"),
    *("correlation", "external", "sequence", "parent_id", "launch_id", "bytes", "graph"),
    *("input_dims", "input_types", "input_strides", "input_values"),
    *_GEOMETRY,
    *("collective", "collective_dtype", *_ELEMENTS),
)
_WORDS = ("source", "place", "kind", *_TEXTS)


def export_timelines(timelines: Sequence[Timeline], path: Path, force: bool = False) -> None:
    """Write the events of all timelines to a `.parquet`, `.arrow` or `.feather` file.

    An existing file is replaced only with `force`, and only once the new one is whole.
    """
    check_export_path(path, force)
    import pyarrow as pa

    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    table = _Table(pa, timelines)
    try:
        if path.suffix == ".parquet":
            from pyarrow import parquet

            opened = parquet.ParquetWriter(part, table.schema, compression="zstd")
        else:
            options = pa.ipc.IpcWriteOptions(compression="lz4")
            opened = pa.ipc.new_file(part, table.schema, options=options)
        with opened as writer:
            for batch in table.batches():
                writer.write_batch(batch)
        part.replace(path)
    except (OSError, pa.ArrowException) as error:
        raise StepscopeError(f"{path}: cannot be written ({error})") from None
    finally:
        part.unlink(missing_ok=True)


def check_export_path(path: Path, force: bool) -> None:
    """Raise UsageError or MissingExtra where nothing can be exported to this path."""
    if find_spec("pyarrow") is None:
        raise MissingExtra("pyarrow", "export", "--export")
    if path.suffix not in (".parquet", ".arrow", ".feather"):
        raise UsageError(f"{path}: the name must end in .parquet, .arrow or .feather")
    if path.exists() and not force:
        raise UsageError(f"{path} exists: --force replaces it")


class _Table:
    """Timelines as record batches that share one dictionary for each column of text.

    Arrow files allow no other, and it is why all dictionaries are made before the first batch.
    """

    def __init__(self, pa: Any, timelines: Sequence[Timeline]) -> None:
        self._pa, self._timelines = pa, timelines
        numbers = {"occupancy": pa.float64(), "grid": pa.list_(pa.int64())}
        numbers["block"] = numbers["grid"]
        word = pa.dictionary(pa.int32(), pa.string())
        self.schema = pa.schema(
            [(c, word if c in _WORDS else numbers.get(c, pa.int64())) for c in _COLUMNS]
        )
        words = {
            "source": [timeline.source for timeline in timelines],
            "place": ["host", "device"],
            "kind": [_kind(kind) for kind in (*HostKind, *DeviceKind)],
        }
        for column in _TEXTS:
            items = (item for timeline in timelines for item in _items(timeline, column))
            words[column] = [text for text in map(_text, items) if text]
        self._codes = {
            column: {text: code for code, text in enumerate(dict.fromkeys(texts))}
            for column, texts in words.items()
        }
        self._words = {c: pa.array(list(codes), pa.string()) for c, codes in self._codes.items()}

    def batches(self) -> Iterator[Any]:
        base = 0
        for timeline in self._timelines:
            lookups = self._lookups(timeline)
            for events in (timeline.host, timeline.device):
                first = base if events is timeline.host else base + len(timeline.host)
                for begin in range(0, len(events), _ROWS):
                    rows = slice(begin, min(begin + _ROWS, len(events)))
                    yield self._batch(timeline, events, rows, base, first, lookups)
            base += len(timeline.host) + len(timeline.device)

    def _batch(
        self,
        timeline: Timeline,
        events: HostEvents | DeviceEvents,
        rows: slice,
        base: int,
        first: int,
        lookups: dict[str, Any],
    ) -> Any:
        size = rows.stop - rows.start
        host = isinstance(events, HostEvents)
        place, kinds = ("host", HostKind) if host else ("device", DeviceKind)
        kind = np.array([self._codes["kind"][_kind(k)] for k in kinds], np.int32)
        fits = abs(timeline.origin_ns) + timeline.span[1] < _INT64
        referred = {"parent_id": "parent", "launch_id": "launch"}
        columns = {
            "id": np.arange(first + rows.start, first + rows.stop),
            "source": np.full(size, self._codes["source"][_text(timeline.source) or ""], np.int32),
            "place": np.full(size, self._codes["place"][place], np.int32),
            "kind": kind[events.kind[rows]],
            "relative_ns": events.start[rows],
            "duration_ns": events.duration[rows],
        }
        if timeline.rank is not None:
            columns["rank"] = np.full(size, timeline.rank)
        if fits:
            columns["start_ns"] = events.start[rows] + timeline.origin_ns
        for column in ("correlation", "external", "sequence", "bytes", "graph"):
            if hasattr(events, column):
                columns[column] = getattr(events, column)[rows]
        for column, name in referred.items():
            if hasattr(events, name):
                index = getattr(events, name)[rows].astype(np.int64)
                columns[column] = np.where(index == NOTHING, NOTHING, index + base)

        def array(column: str) -> Any:
            pa, wanted = self._pa, self.schema.field(column).type
            if column in columns:
                values = columns[column]
                exact = column in ("relative_ns", "start_ns")  # where -1 is a time like any other
                made = pa.array(values, mask=None if exact else values == NOTHING)
                return self._worded(column, made) if column in _WORDS else made.cast(wanted)
            index = getattr(events, (_TEXTS | _NUMBERS).get(column, ("",))[0], None)
            if index is None:
                empty = pa.nulls(size, pa.int32() if column in _WORDS else wanted)
                return self._worded(column, empty) if column in _WORDS else empty
            return lookups[column].take(pa.array(index[rows], mask=index[rows] == NOTHING))

        return self._pa.record_batch([array(column) for column in _COLUMNS], schema=self.schema)

    def _lookups(self, timeline: Timeline) -> dict[str, Any]:
        """For each column the values of the timeline's interned items, in their order."""
        pa = self._pa
        lookups = {}
        for column in _TEXTS:
            texts = (_text(value) or "" for value in _items(timeline, column))
            codes = [self._codes[column].get(text) for text in texts]
            lookups[column] = self._worded(column, pa.array(codes, pa.int32()))
        for column in _NUMBERS:
            numbers = [_number(value) for value in _items(timeline, column)]
            lookups[column] = pa.array(numbers, self.schema.field(column).type)
        return lookups

    def _worded(self, column: str, codes: Any) -> Any:
        return self._pa.DictionaryArray.from_arrays(codes, self._words[column])


def _items(timeline: Timeline, column: str) -> list[Any]:
    """What the timeline interned for a column, in its order."""
    _, interned, name = (_TEXTS | _NUMBERS)[column]
    items: list[Any] = getattr(timeline, interned)
    return [getattr(item, name) for item in items] if name else items


def _kind(kind: HostKind | DeviceKind) -> str:
    return "memset" if kind is DeviceKind.SET else kind.name.lower()


def _text(value: str | bytes | None) -> str | None:
    """Valid text; names in traces can hold half characters that no file format takes."""
    if value is None:
        return None
    raw = value if isinstance(value, bytes) else value.encode(errors="replace")
    return raw.decode(errors="replace")


def _number(value: Any) -> Any:
    """The value, or None where an integer in it needs more than 64 bits."""
    integers = value if isinstance(value, tuple) else (value,)
    small = all(not isinstance(i, int) or -_INT64 <= i < _INT64 for i in integers)
    return value if small else None
