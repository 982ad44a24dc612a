"""The losses of a run, step by step."""

from typing import Any

import numpy as np

from stepscope.report.run_words import noun
from stepscope.report.story.blocks import Axis, Chart, Missing, Section, Series
from stepscope.report.story.thin import extremes, thinned

Document = dict[str, Any]


def losses_section(document: Document) -> Section:
    """The mean of the scalars backpropagated in each step."""
    losses = np.array([np.nan if loss is None else loss for loss in document["losses"]], float)
    known = int(np.count_nonzero(np.isfinite(losses)))
    if not known:
        what = "No losses: nothing scalar was backpropagated."
        if document["steps"]["what"] == "inference":
            what = "No losses: the program infers and does not train."
        how = "A loss is read where the program calls backward() on it."
        return Section("losses", "Losses", (Missing(what, how),))
    at = extremes(losses)
    lost = len(losses) - known
    gaps = (
        f"{lost:,} of {len(losses):,} steps have none, or one that is not finite." if lost else ""
    )
    note = " ".join(part for part in (gaps, thinned(len(losses), "steps")) if part)
    series = Series("", (at + 1).tolist(), losses[at].tolist())
    chart = Chart(
        "losses",
        "line",
        "Loss by step",
        (series,),
        x=Axis(noun(document)),
        y=Axis("loss"),
        note=note,
    )
    return Section("losses", "Losses", (chart,))
