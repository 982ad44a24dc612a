"""Subjects of reports without files."""

from stepscope.results.load import of_document


def subject(kind, document, name="x", folder=None):
    """One that has nothing but its document."""
    return of_document(kind, name, document, folder)
