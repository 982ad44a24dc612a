"""A part of the package."""

ANSWER = 42
