"""Finding things in a story, and recorded runs to tell one of."""

import functools
import gzip
import json
import math
import sys
from pathlib import Path

from stepscope.report.story.blocks import Card, Chart, Missing, Paragraph, Table, TimelineView
from stepscope.results.load import load

CAUSES = Path(__file__).parent.parent / "causes"
TRACES = Path(__file__).parent.parent / "data" / "traces"


def unpacked(name, folder):
    """A recorded run as a folder again, by its program's name."""
    sys.path.insert(0, str(CAUSES))
    try:
        from recorded import ARCHIVES, unpack
    finally:
        sys.path.remove(str(CAUSES))
    return unpack(ARCHIVES / f"{name}.zip", folder / name)


def run_subject(folder):
    return load(str(folder), folder.parent)


@functools.cache
def trace_subject(name):
    """A trace among the tests' own, by its file's name without .json.gz."""
    return load(str(TRACES / f"{name}.json.gz"), TRACES)


def written_trace(path, events):
    """A Kineto trace of some events."""
    document = {"schemaVersion": 1, "traceEvents": events}
    with gzip.open(path, "wb") as file:
        file.write(json.dumps(document).encode())
    return load(str(path), path.parent)


def section(story, name):
    return next(part for part in story.sections if part.id == name)


def blocks(story, kind, part=None):
    """All blocks of a kind, of one section or of all."""
    chosen = [section(story, part)] if part else story.sections
    return [block for one in chosen for block in one.blocks if isinstance(block, kind)]


def table(story, name):
    return next(one for one in blocks(story, Table) if one.id == name)


def chart(story, name):
    return next(one for one in blocks(story, Chart) if one.id == name)


def column(found, name):
    """A table's column by its name."""
    at = [one.name for one in found.columns].index(name)
    return [row[at] for row in found.rows]


def words(story):
    """Everything that is said in sentences."""
    said = [block.text for block in blocks(story, Paragraph)]
    said += [f"{block.what} {block.how} {block.command}" for block in blocks(story, Missing)]
    return " ".join([story.verdict, story.subtitle, *said])


def whole(story):
    """Whether every block is fit for any renderer: ids are unique and plain, columns fit rows."""
    names = [part.id for part in story.sections]
    tables, charts = blocks(story, Table), blocks(story, Chart)
    plain = [*names, *(one.id for one in tables), *(one.id for one in charts)]
    return (
        all(part.blocks for part in story.sections)
        and len(set(names)) == len(names)
        and len({one.id for one in tables}) == len(tables)
        and len({one.id for one in charts}) == len(charts)
        and all(name.replace("-", "").isalnum() and name.isascii() for name in plain)
        and all(len(row) == len(one.columns) for one in tables for row in one.rows)
        and all(_drawable(one) for one in charts)
        and len(blocks(story, TimelineView)) <= 1
        and all(card.title for card in blocks(story, Card))
    )


def _drawable(one):
    """Series as long as they should be, no longer than a chart bears, and never infinite."""
    return bool(one.series) and all(
        len(series.x) == len(series.y) <= 2000
        and all(not isinstance(y, float) or not math.isinf(y) for y in series.y)
        and (not series.text or len(series.text) == len(series.x))
        and (not series.parents or len(series.parents) == len(series.x))
        for series in one.series
    )
