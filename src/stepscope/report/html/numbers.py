"""Values of tables as a reader sees them, and as a script sorts them."""

import math

from stepscope.report.story.blocks import Cell, Column

UNKNOWN = "–"


def shown(value: Cell, column: Column) -> str:
    """`1,240`, `61.2%`, `0.0123`, `yes`; a dash for what is not known."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if column.percent:
        return _signed(f"{_rounded(abs(value) * 100, min(column.digits, 3), most=1)}%", value)
    if isinstance(value, int):
        return _signed(f"{abs(value):,}", value)
    return _signed(_rounded(abs(value), column.digits, most=12), value)


def sortable(value: Cell) -> str:
    """The whole value, for sorting and for the CSV file; "" for what is not known."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool):
        return str(int(value))
    return str(value)


def _rounded(value: float, digits: int, most: int) -> str:
    """Significant digits, whole numbers kept whole; at most so many decimals."""
    if value == 0:
        return "0"
    if value < 10.0**-6 or value >= 10.0**15:
        return f"{value:.{max(digits - 1, 0)}e}"
    before = math.floor(math.log10(value)) + 1
    return f"{value:,.{min(max(digits - before, 0), most)}f}"


def _signed(magnitude: str, value: float) -> str:
    """With a minus sign that is as wide as a plus."""
    return f"−{magnitude}" if value < 0 else magnitude
