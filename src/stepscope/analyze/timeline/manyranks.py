"""Several ranks as one document: each on its own, and side by side."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from stepscope.analyze.timeline.document import SCHEMA, Document, analyse
from stepscope.analyze.timeline.rankfacts import rank_facts
from stepscope.analyze.timeline.ranks import compare_ranks
from stepscope.record.timeline import Timeline


def analyse_ranks(
    timelines: Iterable[Timeline], cached: Iterable[Mapping[str, Any]] = ()
) -> Document:
    """`ranks` has a document for each recording, `comparison` what only all of them tell."""
    cached = list(cached)
    documents, facts = [], []
    for timeline in timelines:
        documents.append(analyse(timeline, cached))
        facts.append(rank_facts(timeline))
    return {"schema": SCHEMA, "ranks": documents, "comparison": asdict(compare_ranks(facts))}
