"""A result that is safe to share: paths, hosts, people, arguments and source lines are replaced,
the same name always by the same replacement.
"""

import json
import os
import re
import socket
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

import msgspec

from stepscope.record.timeline import Timeline
from stepscope.results.comparison import Comparison
from stepscope.results.load import LoadedResult, ResultDocument
from stepscope.trace.load import TRACE_ENDINGS

_PUBLIC: Final = ("torch", "torchvision", "torchaudio", "numpy", "lightning", "transformers")
"""Packages whose files anyone can read: they keep their place in the package."""
_PACKAGES: Final = re.compile(r"^.*?/(?:site|dist)-packages/")
_PATH: Final = re.compile(
    r"(?:file://)?(?<![\w.)\]>])(?:~|[A-Za-z]:)?(?:[/\\][^\s/\\:'\"`,;()\[\]{}<>|=*]+){2,}"
)
_FILE: Final = re.compile(
    r"(?<![\w/.-])(?:[\w.+-]+/)*[\w.+-]+\.(?:py|pyx|ipynb|sh|json|jsonl|ya?ml|toml|csv|npy|npz"
    rf"|pt|pth|ckpt|bin|txt|patch|cu|cpp|{'|'.join(e.rpartition('.')[2] for e in TRACE_ENDINGS)})\b"
)
_USER: Final = re.compile(r"[/\\](?:home|Users)[/\\]+([^/\\\s\"']+)")
_HOST: Final = re.compile(
    r"\b[\w-]+(?:\.[\w-]+)*\.(?:local|internal|lan|corp)\b"
    r"|\b[\w-]+(?:\.[\w-]+)+\.(?:com|org|net|edu|io|de|uk|fr|ch|cn)\b"
)
_MAIL: Final = re.compile(r"[\w.+-]+@[\w.-]+")
_ADDRESS: Final = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b")


class NameReplacements:
    """Hands out `file1.py`, `file2.json`, …; `people` are replaced wherever they stand."""

    def __init__(self, people: Iterable[str]) -> None:
        self._known: dict[str, str] = {}
        self._people = sorted((one for one in people if len(one) > 2), key=len, reverse=True)

    def file(self, path: str) -> str:
        """The replacement of a file's or folder's name; of a public package's, its place there."""
        inside = _PACKAGES.sub("", path.replace("\\", "/"))
        if inside.partition("/")[0] in _PUBLIC:
            return inside
        base = path.replace("\\", "/").rstrip("/").rpartition("/")[2]
        if not base or base in self._known.values():
            return base
        if base not in self._known:
            stem, dot, ending = base.rpartition(".")
            kept = f".{ending}" if dot and stem and ending.isalnum() and len(ending) <= 8 else ""
            self._known[base] = f"file{len(self._known) + 1}{kept}"
        return self._known[base]

    def text(self, value: str) -> str:
        """Text with files, addresses, hosts and people replaced."""
        made = _PATH.sub(lambda found: self.file(found[0]), value)
        made = _FILE.sub(lambda found: self.file(found[0]), made)
        made = _MAIL.sub("user@host", made)
        made = _HOST.sub("host", made)
        made = _ADDRESS.sub("0.0.0.0", made)
        for name in self._people:
            made = re.sub(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", "user", made)
        return made


_GONE: Final[dict[str, Any]] = {
    **{name: [] for name in ("argv", "edits", "by_hand")},
    **{name: {} for name in ("environment", "tools", "variables")},
    **dict.fromkeys(("edit", "git", "uuid", "serial", "pci_bus_id")),
}
"""What stands in their place, wherever they are."""
_FILES: Final = {"file", "folder", "program", "path", "cwd", "executable", "trace", "dataset_path"}
"""Names of files, also where they do not look like it."""


def redact_comparison(comparison: Comparison) -> Comparison:
    """Fit for strangers; what else differs between the machines is left out."""
    document, _ = _redacted(msgspec.to_builtins(comparison))
    return msgspec.convert(document | {"environment": ()}, Comparison)


def redact_result(subject: LoadedResult) -> LoadedResult:
    """Fit for strangers: no story built from it has source lines, and no trace is handed on."""
    document, names = _redacted(subject.document)
    run, patch, command = (document.get(part) for part in ("run", "patch", "command"))
    if isinstance(run, dict) and isinstance(run.get("error"), dict):
        document["run"] = {**run, "error": {**run["error"], "text": ""}}
    if isinstance(patch, dict):
        document["patch"] = {**patch, "text": "", "status": "redacted"}
    if isinstance(command, str):
        document["command"] = names.text(_own_command(command))
    shown = names.file if subject.kind == "trace" else names.text  # an id stays
    return subject.replaced(
        name=shown(subject.name),
        document=document,
        folder=None,
        trace=None,
        timeline=lambda timeline: _renamed(timeline, names),
    )


def _redacted(document: ResultDocument) -> tuple[ResultDocument, NameReplacements]:
    """People are those the machine knows, and whose home folders are named."""
    host = socket.gethostname()
    users = (os.environ.get("USER", ""), os.environ.get("LOGNAME", ""))
    called = {host, host.partition(".")[0], *users} - {"root", "localhost"}
    found = json.dumps(document, default=str)
    names = NameReplacements({*called, *_USER.findall(found)})
    return _walked(document, names, ""), names


def _walked(value: Any, names: NameReplacements, key: str) -> Any:
    """Of the same shape; `key` is what it is called."""
    if isinstance(value, dict):
        return {
            names.text(str(name)): _GONE[name]
            if name in _GONE and not (name == "serial" and isinstance(part, dict))
            else _walked(part, names, str(name))  # a recording's serial part is no device's number
            for name, part in value.items()
        }
    if isinstance(value, list | tuple):
        return [_walked(part, names, key) for part in value]
    if not isinstance(value, str):
        return value
    return names.file(value) if key in _FILES else names.text(value)


def _own_command(command: str) -> str:
    """A command line up to what is the user's own."""
    words, end = command.split(), 2
    while end + 1 < len(words) and words[end] == "--fix":
        end += 2
    return " ".join([*words[:end], "PROGRAM" if words[1:2] == ["run"] else "…"])


def _renamed(timeline: Timeline, names: NameReplacements) -> Timeline:
    threads = [replace(one, name=names.text(one.name)) for one in timeline.threads]
    shown = [names.text(name) for name in timeline.names]
    return replace(timeline, source=names.file(timeline.source), names=shown, threads=threads)
