"""Numbers and places as sentences have them."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from stepscope.record.finding import Place, Predicted


def times(value: float) -> str:
    """How often a step: "1", "2.5", "40"."""
    return f"{value:.0f}" if value >= 9.5 or abs(value - round(value)) < 0.05 else f"{value:.1f}"


def line_of(document: Mapping[str, Any]) -> Place:
    """The place of anything that has `file` and `line`."""
    return Place(file=document.get("file"), line=document.get("line"))


def at(place: Place) -> str:
    """A place in a sentence: ", train.py:20"; nothing where it is not known."""
    return f", {PurePath(place.file).name}:{place.line}" if place.file else ""


def told(predicted: Predicted | None, words: str) -> Predicted | None:
    """A prediction made without words, with them."""
    return predicted and replace(predicted, how=predicted.how + words)
