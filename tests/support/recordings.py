"""The real recordings as timelines, each read once."""

from functools import cache

from plain import TRACES

from stepscope.record.timeline import Timeline
from stepscope.trace.kineto.read import read_kineto


@cache
def recorded(name: str) -> Timeline:
    """By the file's name without .json.gz."""
    return read_kineto(TRACES / f"{name}.json.gz")
