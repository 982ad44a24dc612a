"""Observing a compiled program changes nothing of what torch.compile makes of it."""

import json
from typing import Any

from harness import Ended, Outcome, programs

compiled = programs(where=lambda shape: "compile" in shape.expects)


def dynamo_counts(ended: Ended) -> dict[str, Any]:
    """What the program's `_counters` wrote to stderr when it ended."""
    (line,) = [line for line in ended.stderr.splitlines() if line.startswith("dynamo ")]
    counts: dict[str, Any] = json.loads(line.removeprefix("dynamo "))
    return counts


@compiled
def test_graphs_breaks_and_recompilations_stay_as_they_are(outcome: Outcome) -> None:
    plain = dynamo_counts(outcome.plain)
    for must_occur in outcome.shape.expects["compile"].split():
        assert plain[must_occur] > 0
    assert dynamo_counts(outcome.observed) == plain


@compiled
def test_the_run_records_what_was_compiled(outcome: Outcome) -> None:
    plain = dynamo_counts(outcome.plain)
    recorded = outcome.document["compile"]
    assert recorded["graphs"] == plain["graphs"]
    assert recorded["graph_breaks"] == plain["graph_breaks"]
    assert recorded["recompiles"] == plain["recompilations"]


@programs("plain_loop")
def test_a_program_that_compiles_nothing_has_no_compile_record(outcome: Outcome) -> None:
    assert outcome.document["compile"] is None
