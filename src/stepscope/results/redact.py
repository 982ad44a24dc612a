"""Makes a result safe to share: paths, hosts, people, arguments and source lines are replaced, the
same name always by the same replacement.
"""

import json
import os
import re
import socket
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any, Final

import msgspec

from stepscope.record.privacy import masked_text
from stepscope.record.timeline import Timeline
from stepscope.record.units import plural
from stepscope.results.comparison import Comparison
from stepscope.results.load import LoadedResult, ResultDocument, Run
from stepscope.trace.load import TRACE_ENDINGS

_PUBLIC: Final = ("torch", "torchvision", "torchaudio", "numpy", "lightning", "transformers")
"""Public packages: their files keep their path inside the package."""
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
    r"(?<![\w-])[\w-]{1,253}(?:\.[\w-]{1,253}){0,20}\.(?:local|internal|lan|corp)\b"
    r"|(?<![\w-])[\w-]{1,253}(?:\.[\w-]{1,253}){1,20}\.(?:com|org|net|edu|io|de|uk|fr|ch|cn)\b"
)
_MAIL: Final = re.compile(r"(?<![\w.+-])[\w.+-]+@[\w.-]+")
_ADDRESS: Final = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b")


class NameReplacements:
    """Hands out `file1.py`, `file2.json`, …, `run1`."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}
        self._words: dict[str, str] = {}
        self._results: set[str] = set()
        self._removed: defaultdict[str, set[str]] = defaultdict(set)

    def add_people(self, people: Iterable[str]) -> None:
        """Names of users and machines, which are replaced everywhere."""
        self._words |= {one: "user" for one in people if len(one) > 2}

    def add_result(self, kind: str, *called: str) -> str:
        """The replacement of a result's id and folder name; the first is `run1`."""
        known = next((self._known[one] for one in called if one in self._results), None)
        shown = known or f"{kind}{len({self._known[one] for one in self._results}) + 1}"
        for one in filter(None, called):
            self._known[one] = shown
            self._results.add(one)
            if len(one) > 2 and not one.isalpha():  # a plain word may occur in any text
                self._words[one] = shown
        return shown

    def result(self, name: str) -> str:
        """The replacement of a result's name, or of part of it: `id/3` of repeated runs."""
        parts = (self.file(one) if one in self._results else one for one in name.split("/"))
        return self.text("/".join(parts))

    def remove(self, what: str, value: str) -> None:
        """Count something removed: once, however often it occurred."""
        if value:
            self._removed[what].add(value)

    @property
    def removed(self) -> str:
        """`3 arguments, 12 file names`; empty where nothing was removed."""
        return ", ".join(plural(len(them), what) for what, them in sorted(self._removed.items()))

    def file(self, path: str) -> str:
        """The replacement of a file or folder name; for a public package, the path inside it."""
        inside = _PACKAGES.sub("", path.replace("\\", "/"))
        if inside.partition("/")[0] in _PUBLIC:
            return inside
        base = path.replace("\\", "/").rstrip("/").rpartition("/")[2]
        if not base or base in self._known.values():
            return base
        self.remove("result name" if base in self._results else "file name", base)
        if base not in self._known:
            stem, dot, ending = base.rpartition(".")
            kept = f".{ending}" if dot and stem and ending.isalnum() and len(ending) <= 8 else ""
            number = len(self._known) - len(self._results) + 1
            self._known[base] = f"file{number}{kept}"
        return self._known[base]

    def text(self, value: str) -> str:
        """Text with secrets, files, addresses, hosts and people replaced."""
        made = masked_text(value)
        if made != value:
            self.remove("secret", value)
        made = _PATH.sub(lambda found: self.file(found[0]), made)
        made = _FILE.sub(lambda found: self.file(found[0]), made)
        for pattern, shown in ((_MAIL, "user@host"), (_HOST, "host"), (_ADDRESS, "0.0.0.0")):
            made = pattern.sub(partial(self._replaced, "address", shown), made)
        for name in sorted(self._words, key=len, reverse=True):
            if name in made:
                shown = self._words[name]
                what = "user or host name" if shown == "user" else "result name"
                whole = rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])"
                made = re.sub(whole, partial(self._replaced, what, shown), made)
        return made

    def _replaced(self, what: str, shown: str, found: re.Match[str]) -> str:
        if found[0] != shown:
            self.remove(what, found[0])
        return shown


_GONE: Final[dict[str, tuple[str, Any]]] = {
    "argv": ("argument", []),
    "edits": ("edit", []),
    "by_hand": ("edit", []),
    "edit": ("edit", None),
    "environment": ("variable", {}),
    "variables": ("variable", {}),
    "tools": ("tool", {}),
    "git": ("commit", None),
    **dict.fromkeys(("uuid", "serial", "pci_bus_id"), ("device id", None)),
}
"""What is removed everywhere, and its replacement."""
_FILES: Final = {
    "file",
    "folder",
    "program",
    "script",
    "path",
    "cwd",
    "executable",
    "trace",
    "dataset_path",
}
"""Fields that hold file names, even if they do not look like one."""


def redact_comparison(comparison: Comparison, names: NameReplacements) -> Comparison:
    """A comparison safe to share, without other differences between the machines. `names` knows the
    compared results."""
    document = _redacted(msgspec.to_builtins(comparison), names)
    return msgspec.convert(document | {"environment": ()}, Comparison)


def redact_result(subject: LoadedResult, names: NameReplacements | None = None) -> LoadedResult:
    """A result safe to share: no story built from it has source lines, and no trace is handed on.
    `names` is shared by several results and counts what was removed."""
    names = NameReplacements() if names is None else names
    if subject.kind == "trace":
        name = names.file(subject.name)
    else:
        own, folder = subject.document.get("run"), subject.folder
        known = str(own.get("id") or "") if isinstance(own, dict) else ""
        name = names.add_result(subject.kind, subject.name, known, folder.name if folder else "")
        names.remove("result name", subject.name)
    document = _redacted(subject.document, names)
    run, patch, command = (document.get(part) for part in ("run", "patch", "command"))
    if isinstance(run, dict) and isinstance(run.get("error"), dict):
        names.remove("error text", run["error"].get("text") or "")
        document["run"] = {**run, "error": {**run["error"], "text": ""}}
    if isinstance(patch, dict):
        names.remove("diff", patch.get("text") or "")
        document["patch"] = {**patch, "text": "", "status": "redacted"}
    if isinstance(command, str):
        document["command"] = names.text(_own_command(command))
    for file, lines in (subject.sources if isinstance(subject, Run) else {}).items():
        for number in lines:
            names.remove("source line", f"{file}:{number}")
    names.remove("trace", str(subject.trace or ""))
    return subject.replaced(
        name=name,
        document=document,
        folder=None,
        trace=None,
        timeline=lambda timeline: _renamed(timeline, names),
    )


def _redacted(document: ResultDocument, names: NameReplacements) -> ResultDocument:
    """People are the machine's users and the owners of home folders named in it."""
    host = socket.gethostname()
    users = (os.environ.get("USER", ""), os.environ.get("LOGNAME", ""))
    called = {host, host.partition(".")[0], *users} - {"root", "localhost"}
    names.add_people({*called, *_USER.findall(json.dumps(document, default=str))})
    made: ResultDocument = _walked(document, names, "")
    return made


def _walked(value: Any, names: NameReplacements, key: str) -> Any:
    """A value of the same shape; `key` is its field's name."""
    if isinstance(value, dict):
        made = {}
        for name, part in value.items():
            # The serial part of a recording's name is not a device number.
            gone = name in _GONE and not (name == "serial" and isinstance(part, dict))
            if gone:
                for one in part if isinstance(part, list | tuple | dict) else (part or "",):
                    names.remove(_GONE[name][0], str(one))
            shown = names.text(str(name))
            if str(name).isidentifier() and shown != "user":  # not a field's name
                shown = str(name)
            made[shown] = _GONE[name][1] if gone else _walked(part, names, str(name))
        return made
    if isinstance(value, list | tuple):
        return [_walked(part, names, key) for part in value]
    if not isinstance(value, str):
        return value
    if key in ("id", "names"):
        return names.result(value)
    return names.file(value) if key in _FILES else names.text(value)


def _own_command(command: str) -> str:
    """A command line up to the user's own part."""
    words, end = command.split(), 2
    while end + 1 < len(words) and words[end] == "--fix":
        end += 2
    return " ".join([*words[:end], "PROGRAM" if words[1:2] == ["run"] else "…"])


def _renamed(timeline: Timeline, names: NameReplacements) -> Timeline:
    threads = [replace(one, name=names.text(one.name)) for one in timeline.threads]
    shown = [names.text(name) for name in timeline.names]
    return replace(timeline, source=names.file(timeline.source), names=shown, threads=threads)
