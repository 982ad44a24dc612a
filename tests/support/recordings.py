"""The real recordings as timelines, each read once."""

from functools import cache

from plain import TRACES, read_plain

from stepscope.record.timeline import Timeline


@cache
def recorded(name: str) -> Timeline:
    """By the file's name without .json.gz."""
    return read_plain(TRACES / f"{name}.json.gz")
