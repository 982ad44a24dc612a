"""Subjects of reports without files."""

from stepscope.results.load import LoadedResult


def subject(kind, document, name="x", folder=None):
    """One that has nothing but its document."""
    return LoadedResult(kind, name, document, folder, None, lambda: None, lambda: None)
