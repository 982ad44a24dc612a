"""Sizes that are no multiple of 8 keep products from the fast kernels."""

from collections.abc import Iterable

from stepscope.analyze.whatif.gains_attention import tensors
from stepscope.analyze.whatif.gains_factors import REACHED, by_operator, scaled
from stepscope.diagnose.case import Case, Rule, in_ms
from stepscope.diagnose.rules._kernels import Row, gain, in_vain, operators_of, rows_ms, shapes
from stepscope.diagnose.rules._step import part, sites
from stepscope.record.finding import Evidence, Finding

_LEAST = 0.03
_LOW = ("bf16", "fp16", "tf32")
_USUAL = 0.5  # of the ceiling: what well-shaped products reach where none is there to compare with
_SLOW = 0.8  # of what the others reach: an odd one that does as well is no loss
_SMALL = 16


def _odd_sizes(case: Case) -> Iterable[Finding]:
    """Where such products are slower than the program's others and take 3% of the step or more."""
    rows = [row for row in shapes(case) if _counts(row)]
    odd = [row for row in rows if odd_dimensions(row)]
    even = [row for row in rows if not odd_dimensions(row)]
    reached = min(REACHED, _mean_share(even) or _USUAL)
    slow = [row for row in odd if row["share"] < _SLOW * reached]
    spent = rows_ms(case, slow)
    if part(case, spent) < _LEAST:
        return
    keys = {(row["name"], row["shape"]) for row in slow}

    def new_time(row: Row) -> float | None:
        ours = (row["name"], row["shape"]) in keys
        return float(row["time_ns"] * row["share"] / reached) if ours else None

    change = scaled(by_operator(shapes(case), new_time))
    words = f"{in_ms(spent)} ms of odd products get as near the ceiling as the others"
    changes = [change] if change is not None else None
    predicted = gain(case, changes, words, 0.4)
    if in_vain(case, changes, predicted):
        return
    heavy = max(slow, key=lambda row: row["time_ns"])
    sizes = ", ".join(str(n) for n in odd_dimensions(heavy)[:3])
    yield Finding(
        id=ODD_SIZES.id,
        title=f"Sizes that are no multiple of 8: {sizes}"[:60],
        why=(
            f"Tensor cores load rows of 8 numbers: products with a side of {sizes} take slower "
            f"kernels, {rows_ms(case, [heavy]):.2f} ms a step at {heavy['share']:.0%} of the limit."
        ),
        advice="Pad these sizes (vocabulary, channels, hidden width) to a multiple of 64, or of 8.",
        share=part(case, spent),
        evidence=(
            Evidence("odd products", spent, "ms"),
            Evidence("reached by them", 100 * (_mean_share(slow) or 0.0), "%"),
            Evidence("reached by the others", 100 * reached, "%"),
            Evidence("shape", str(heavy["shape"])),
        ),
        where=(*sites(case, "forward")[:1], *operators_of(slow)),
        predicted=predicted,
        effort="some lines",
        kind="semantic",
        confidence="medium",
    )


ODD_SIZES = Rule(
    id="compute.odd_sizes",
    cause="Sizes that are no multiple of 8 keep products from the fast kernels.",
    find=_odd_sizes,
)


def odd_dimensions(row: Row) -> list[int]:
    """Sides of a product that are no multiple of 8, small ones (a few classes) aside."""
    inputs = tensors(row)
    if row["category"] == "convolution":
        weights = [dims for dims in inputs if len(dims) == 4][-1:]
        sides = [n for dims in weights for n in dims[:2]]
    else:
        sides = [n for dims in inputs[-2:] for n in dims[-2:]]
    step = 4 if row["dtype"] == "tf32" else 8
    return list(dict.fromkeys(n for n in sides if n >= _SMALL and n % step))


def _counts(row: Row) -> bool:
    matrix = row["category"] in ("matmul", "convolution") and row["dtype"] in _LOW
    return bool(matrix and row.get("share") and row.get("ceiling") == "compute")


def _mean_share(rows: list[Row]) -> float | None:
    """Weighted by time."""
    whole = sum(row["time_ns"] for row in rows)
    return sum(row["share"] * row["time_ns"] for row in rows) / whole if whole else None
