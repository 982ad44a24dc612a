"""What `stepscope.find_batch_size` gives: numbers, and a table in consoles and notebooks."""

from html import escape
from typing import Any

from stepscope.report.batch_rows import COLUMNS, curve_lines, failed_words, marks, used
from stepscope.report.text import safe

_WIDEST = 80


class BatchSizes:
    """The answer of a search. `document` holds all of it."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document

    @property
    def knee(self) -> int | None:
        """The smallest size near the best throughput that keeps the headroom; None: none does."""
        at = self.document["knee"]
        return at["batch"] if at else None

    @property
    def largest(self) -> int | None:
        """The largest size that ran; None: none did."""
        found = self.document["largest"]
        return found["batch"] if found else None

    @property
    def curve(self) -> list[dict[str, Any]]:
        """A row for each size, smallest first: batch, samples_per_s, step_ms, memory_bytes …"""
        return list(self.document["curve"])

    def __repr__(self) -> str:
        lines = [safe(self.document["verdict"]), ""]
        lines += [line.plain for line in curve_lines(self.document, _WIDEST)]
        stopped = self.document["stopped"]
        return "\n".join(lines + ([f"stopped: {safe(stopped['words'])}"] if stopped else []))

    def _repr_html_(self) -> str:
        columns = used(COLUMNS, self.curve)
        heads = "".join(f"<th>{escape(one.heading)}</th>" for one in columns)
        rows = "".join(self._row(row, columns) for row in self.curve)
        verdict = escape(safe(self.document["verdict"]))
        return f"<p>{verdict}</p><table><tr>{heads}<th></th></tr>{rows}</table>"

    def _row(self, row: dict[str, Any], columns: Any) -> str:
        mark = escape(", ".join(marks(self.document, row["batch"])))
        if row["status"] != "ok":
            cells = f"<td>{row['batch']:,}</td><td colspan='{len(columns) - 1}'>"
            return f"<tr>{cells}{escape(failed_words(row))}</td><td>{mark}</td></tr>"
        cells = "".join(f"<td>{escape(one.cell(row) or '')}</td>" for one in columns)
        return f"<tr>{cells}<td>{mark}</td></tr>"
