"""Which colour a series has: a name of the page's own variables, so that themes may change it."""

COLOURS = 8

_KNOWN = {
    "data wait": 2,
    "data_wait": 2,
    "idle": 8,
    "copy": 4,
    "h2d": 4,
    "copies": 4,
    "forward": 1,
    "backward": 3,
    "optimizer": 6,
    "other": 8,
}
"""Phases look the same wherever they stand."""


def colour(name: str, position: int) -> str:
    """Of a series, by its name where that is a phase's, else by its position in the chart."""
    return f"var(--series-{_KNOWN.get(name.lower(), position % (COLOURS - 1) + 1)})"


def soft(colour_of: str) -> str:
    """The same colour, thin enough to lie behind a line."""
    return colour_of.replace("var(", "soft(", 1)
