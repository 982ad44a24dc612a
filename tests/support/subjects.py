"""Subjects of reports without files."""

from stepscope.report.subject import Subject


def subject(kind, document, name="x", folder=None):
    """One that has nothing but its document."""
    return Subject(kind, name, document, folder, None, lambda: None, lambda: None)
