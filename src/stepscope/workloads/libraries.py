"""Installed libraries that may be missing, broken or of another mind: their errors in one line."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any


def library(name: str) -> Any:
    """The imported library."""
    with told(f"{name} cannot be imported"):
        return import_module(name)


@contextmanager
def told(what: str) -> Iterator[None]:
    """Turns what the library raises into a ValueError that begins with `what`."""
    try:
        yield
    except Exception as problem:
        reason = str(problem) or type(problem).__name__
        raise ValueError(f"{what}: {reason}") from problem
