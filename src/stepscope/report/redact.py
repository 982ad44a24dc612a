"""A subject that may be shown to strangers: what tells of people, machines and code is replaced.

Paths, names of hosts and users, arguments, environment variables and source lines go; figures,
names of operators and kernels, and devices stay. The same file keeps the same replacement.
"""

import json
import os
import socket
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from stepscope.record.timeline import Timeline
from stepscope.report.redact_names import Names
from stepscope.report.subject import Document, Subject

_GONE: Final[dict[str, Any]] = {
    "argv": [], "edits": [], "by_hand": [], "environment": {}, "tools": {}, "variables": {},
    "edit": None, "git": None, "uuid": None, "serial": None, "pci_bus_id": None,
}  # fmt: skip
"""What stands in their place, wherever they are."""
_FILES: Final = {"file", "folder", "program", "path", "cwd", "executable", "trace", "dataset_path"}
"""Names of files, also where they do not look like it."""


def redacted_document(document: Document) -> Document:
    """A document that belongs to no subject, as of a comparison."""
    names = Names(_people())
    names.learn(json.dumps(document, default=str))
    found: Document = _walked(document, names, "")
    return found


def redacted(subject: Subject) -> Subject:
    """Fit for strangers: no story built from it has source lines, and no trace is handed on."""
    names = Names(_people())
    names.learn(json.dumps(subject.document, default=str))
    document = _walked(subject.document, names, "")
    document = _own_words(_command(document, names))
    return replace(
        subject,
        name=_name(subject, names),
        document=document,
        folder=None,
        trace=None,
        timeline=_hidden(subject.timeline, names),
    )


def _people() -> list[str]:
    """What this machine and whoever uses it are called."""
    host = socket.gethostname()
    found = [
        host,
        host.partition(".")[0],
        os.environ.get("USER", ""),
        os.environ.get("LOGNAME", ""),
    ]
    return [name for name in found if len(name) > 2 and name not in ("root", "localhost")]


def _name(subject: Subject, names: Names) -> str:
    """An id stays; a file's name goes."""
    return names.file(subject.name) if subject.kind == "trace" else names.text(subject.name)


def _walked(value: Any, names: Names, key: str) -> Any:
    """Of the same shape; `key` is what it is called."""
    if isinstance(value, dict):
        return {
            names.text(str(name)): _GONE[name] if name in _GONE else _walked(part, names, str(name))
            for name, part in value.items()
        }
    if isinstance(value, list | tuple):
        return [_walked(part, names, key) for part in value]
    if not isinstance(value, str):
        return value
    return names.file(value) if key in _FILES else names.text(value)


def _own_words(document: Document) -> Document:
    """Without source lines of a patch and what an exception of the program said."""
    run, patch = document.get("run"), document.get("patch")
    changed: Document = {}
    if isinstance(run, dict) and isinstance(run.get("error"), dict):
        changed["run"] = {**run, "error": {**run["error"], "text": ""}}
    if isinstance(patch, dict):
        changed["patch"] = {**patch, "text": "", "why": "the patch is left out as source"}
    return {**document, **changed}


def _command(document: Document, names: Names) -> Document:
    """A command line up to what is the user's own."""
    command = document.get("command")
    if not isinstance(command, str):
        return document
    words = command.split()
    kept, at = words[:2], 2
    while at + 1 < len(words) and words[at] == "--fix":
        kept += words[at : at + 2]
        at += 2
    end = "PROGRAM" if kept[1:2] == ["run"] else "…"
    return {**document, "command": names.text(" ".join([*kept, end]))}


def _hidden(read: Callable[[], Timeline | None], names: Names) -> Callable[[], Timeline | None]:
    def timeline() -> Timeline | None:
        found = read()
        if found is None:
            return None
        threads = [replace(one, name=names.text(one.name)) for one in found.threads]
        shown = [names.text(name) for name in found.names]
        return replace(found, source=names.file(found.source), names=shown, threads=threads)

    return timeline
