"""Headings of a benchmark's tables."""

from stepscope.report.story.blocks import Column


def number(name: str, unit: str = "", digits: int = 3) -> Column:
    """A column of numbers, with so many significant digits."""
    return Column(name, unit, number=True, digits=digits)


def share(name: str) -> Column:
    """A column of shares, 0 to 1, shown in percent."""
    return Column(name, number=True, percent=True)
