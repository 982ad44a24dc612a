"""Subjects of reports without files."""

from stepscope.results.load import STORED, LoadedResult, Ranks, Run, Trace

KINDS = {kind.kind: kind for kind in (Run, Trace, Ranks, *STORED)}


def of_document(kind, name, document, folder=None):
    """A result that has nothing but its document."""
    made = KINDS[kind].__new__(KINDS[kind])
    LoadedResult.__init__(made, name, folder)
    made.__dict__ |= {"document": document, "timeline": None, "tables": None}
    return made


def subject(kind, document, name="x", folder=None):
    return of_document(kind, name, document, folder)
