"""The live line: the last steps, read from the rows as the child writes them."""

import os
import struct
import time
from pathlib import Path
from typing import IO

from stepscope.probe.step_rule import StepRule
from stepscope.record.row_log import ROW_COLUMNS, RowKind
from stepscope.store.table import HEADER_BYTES

_ROW = struct.Struct(f"<{len(ROW_COLUMNS)}d")
_COLUMN = {name: i for i, name in enumerate(ROW_COLUMNS)}
_EVERY_S = 0.5
_INSTEAD = (RowKind.MARK, RowKind.BACKWARD, RowKind.CALL, RowKind.EVAL, RowKind.BATCH)


class LiveLine:
    """Draws one line on a terminal; nothing elsewhere."""

    def __init__(self, rows: Path, stream: IO[str]) -> None:
        self._path = rows
        self._stream = stream
        self._file: IO[bytes] | None = None
        self._rule = StepRule()
        self._instead = dict.fromkeys(_INSTEAD, 0)
        self._drawn_at = 0.0
        self._recent: list[tuple[int, float, float, float]] = []  # step, end, samples, data wait
        self._samples = 0.0
        self._waited = 0.0
        self.gpu_percent: float | None = None

    def tick(self) -> None:
        """Look for new rows; draw now and then."""
        now = time.monotonic()
        if now - self._drawn_at < _EVERY_S:
            return
        self._drawn_at = now
        self._read()
        if len(self._recent) > 1:
            self._stream.write(f"\x1b[2K{self.text()}\r")
            self._stream.flush()

    def clear(self) -> None:
        """Leave the line empty; nothing is drawn after that."""
        if self._file is not None:
            self._file.close()
        if self._recent:
            self._stream.write("\x1b[2K\r")
            self._stream.flush()

    def text(self) -> str:
        """The line, from the steps of the last few seconds."""
        first, begin, samples, waited = self._recent[0]
        last, end, samples_now, waited_now = self._recent[-1]
        steps, seconds = last - first, (end - begin) / 1e9
        if steps <= 0 or seconds <= 0:
            return f"stepscope  step {last:,}"
        parts = [f"step {last:,}", f"{seconds / steps * 1e3:.1f} ms"]
        if samples_now > samples:
            parts.append(f"{(samples_now - samples) / seconds:,.0f} samples/s")
        if self.gpu_percent is not None and self.gpu_percent == self.gpu_percent:
            parts.append(f"GPU {self.gpu_percent:.0f}%")
        parts.append(f"data wait {(waited_now - waited) / 1e9 / seconds:.0%}")
        return "stepscope  " + " · ".join(parts)

    def _read(self) -> None:
        if self._file is None:
            try:
                self._file = open(self._path, "rb", buffering=0)  # noqa: SIM115
                self._file.seek(HEADER_BYTES)
            except OSError:
                return
        while True:
            data = self._file.read(_ROW.size)
            row = _ROW.unpack(data) if len(data) == _ROW.size else (0.0,)
            if not row[0]:  # not written yet
                self._file.seek(-len(data), os.SEEK_CUR)
                break
            self._add(row)
        del self._recent[:-200]

    def _add(self, row: tuple[float, ...]) -> None:
        kind = int(row[_COLUMN["kind"]])
        self._samples += row[_COLUMN["samples"]] or row[_COLUMN["inputs"]]
        self._waited += row[_COLUMN["data_wait_ns"]]
        if kind == RowKind.STEP:
            self._rule.add(int(row[_COLUMN["who"]]))
        elif kind in self._instead:
            self._instead[RowKind(kind)] += 1
        else:
            return
        marks, *others = self._instead.values()  # as marked, else by optimizers, else by others
        step = next(filter(None, (marks, self._rule.settled, *others)), 0)
        self._recent.append((step, row[0], self._samples, self._waited))
        while self._recent and row[0] - self._recent[0][1] > 5e9:
            self._recent.pop(0)
