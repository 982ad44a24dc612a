"""Replacements for names of files, hosts and people: the same for the same name."""

import re
from collections.abc import Iterable
from typing import Final

_PUBLIC: Final = ("torch", "torchvision", "torchaudio", "numpy", "lightning", "transformers")
"""Packages whose files anyone can read: they keep their place in the package."""
_PACKAGES: Final = re.compile(r"^.*?/(?:site|dist)-packages/")
_PATH: Final = re.compile(
    r"(?:file://)?(?<![\w.)\]>])(?:~|[A-Za-z]:)?(?:[/\\][^\s/\\:'\"`,;()\[\]{}<>|=*]+){2,}"
)
_FILE: Final = re.compile(
    r"(?<![\w/.-])(?:[\w.+-]+/)*[\w.+-]+\.(?:py|pyx|ipynb|sh|json|jsonl|ya?ml|toml|csv|npy|npz"
    r"|pt|pth|ckpt|bin|txt|gz|sqlite|nsys-rep|patch|cu|cpp)\b"
)
_USER: Final = re.compile(r"[/\\](?:home|Users)[/\\]+([^/\\\s\"']+)")
_HOST: Final = re.compile(
    r"\b[\w-]+(?:\.[\w-]+)*\.(?:local|internal|lan|corp)\b"
    r"|\b[\w-]+(?:\.[\w-]+)+\.(?:com|org|net|edu|io|de|uk|fr|ch|cn)\b"
)
_MAIL: Final = re.compile(r"[\w.+-]+@[\w.-]+")
_ADDRESS: Final = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b")


class Names:
    """Hands out `file1.py`, `file2.json`, …; `people` are replaced wherever they stand."""

    def __init__(self, people: Iterable[str]) -> None:
        self._known: dict[str, str] = {}
        self._people = set(people)

    def learn(self, text: str) -> None:
        """Take note of the people whose home folders are named in it."""
        self._people.update(_USER.findall(text))

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
        for name in sorted(self._people, key=len, reverse=True):
            if len(name) > 2:
                made = re.sub(rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])", "user", made)
        return made
