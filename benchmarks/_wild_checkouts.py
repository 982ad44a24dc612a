"""Public programs, copied from checkouts at the manifest's commit. Nothing of them is kept."""

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

MANIFEST = Path(__file__).with_name("wild_programs.toml")
_LARGEST = 300_000  # bytes of a packed file: no source file of these programs is larger


@dataclass(frozen=True, kw_only=True)
class Program:
    """One program of the manifest."""

    name: str
    task: str
    """What it trains: classification, GAN, …"""
    repository: str
    commit: str
    command: str
    """The script and its arguments; `-m` first where it is a module."""
    folder: str = "."
    """Where it is started, from the repository's root."""
    paths: tuple[str, ...] = ()
    """What it needs of its repository; all if empty."""
    path: tuple[str, ...] = ()
    """Folders of its repository that belong on PYTHONPATH."""
    data: dict[str, str] = field(default_factory=dict)
    """Paths from the repository's root: the maker and its numbers."""
    cpu: str = ""
    cuda: str = ""
    """Arguments it needs on that device."""
    devices: tuple[str, ...] = ("cpu", "cuda")
    environment: dict[str, str] = field(default_factory=dict)
    packages: tuple[str, ...] = ()
    """Modules it imports beyond torch and numpy."""
    steps: int | str | None = None
    """How many it takes; or a pattern, whose last match in its output tells."""
    limit: int | None = None
    """End it after so many steps: it would take too long. Its bare runs are cut after a time."""

    def words(self, device: str) -> list[str]:
        return shlex.split(f"{self.command} {self.cuda if device == 'cuda' else self.cpu}")

    def lacking(self) -> list[str]:
        """Packages that are not installed here."""
        return [one for one in self.packages if importlib.util.find_spec(one) is None]


def programs(manifest: Path = MANIFEST) -> list[Program]:
    """Those of the manifest, in its order. Raises ValueError where an entry is not well formed."""
    told = tomllib.loads(manifest.read_text())
    commits: dict[str, str] = told["commits"]
    found = []
    for entry in told["program"]:
        one: dict[str, Any] = {"commit": commits.get(entry.get("repository", ""), ""), **entry}
        for name in ("paths", "path", "devices", "packages"):
            if name in one:
                one[name] = tuple(one[name])
        try:
            found.append(Program(**one))
        except TypeError as problem:
            raise ValueError(f"{manifest.name}, {entry.get('name')}: {problem}") from problem
        if not found[-1].commit:
            raise ValueError(f"{manifest.name}, {found[-1].name}: no commit of its repository")
    return found


class CheckoutError(Exception):
    """A program's files are not among the checkouts."""


def unpack(program: Program, checkouts: Path, into: Path) -> None:
    """The program's files at its commit. Large ones that a snapshot lacks are left out."""
    source = _source(program, checkouts)
    into.mkdir(parents=True, exist_ok=True)
    if (source / "HEAD").is_file():
        git = ["git", "--git-dir", str(source)]
    elif (source / ".git").exists():
        git = ["git", "-C", str(source)]
    else:
        for file in filter(Path.is_file, source.rglob("*")):
            place = into / file.relative_to(source)
            if _wanted(str(file.relative_to(source)), program.paths):
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, place)
        return
    listed = subprocess.run(
        [*git, "ls-tree", "-rz", "--full-tree", program.commit], capture_output=True, check=False
    )
    if listed.returncode:
        raise CheckoutError(f"{program.repository} has no commit {program.commit[:12]}")
    files = {}
    for line in filter(None, listed.stdout.decode().split("\0")):
        about, _, path = line.partition("\t")
        mode, _, digest = about.split()
        if mode.startswith("100") and _wanted(path, program.paths):
            files[path] = digest
    asked = "".join(f"{digest}\n" for digest in files.values()).encode()
    packed = subprocess.run(
        [*git, "cat-file", "--batch"], input=asked, capture_output=True, check=True
    ).stdout
    at = 0
    for path in files:
        end = packed.index(b"\n", at)
        about_blob, at = packed[at:end].split(), end + 1
        if about_blob[-1] == b"missing":
            continue
        size = int(about_blob[-1])
        place = into / _inside(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(packed[at : at + size])
        at += size + 1


def pack(wanted: Iterable[Program], checkouts: Path, archive: Path) -> None:
    """Write the text files that programs need of their repositories to an archive, from which
    `unpacked` makes checkouts. Repositories that are not there are named on stderr."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for program in wanted:
            try:
                unpack(program, checkouts, folder / program.repository.replace("/", "+"))
            except CheckoutError as problem:
                print(f"{program.name}: {problem}", file=sys.stderr)
        with tarfile.open(archive, "w:xz") as tar:
            for file in sorted(filter(Path.is_file, folder.rglob("*"))):
                content = file.read_bytes()
                if len(content) <= _LARGEST and b"\0" not in content:
                    tar.add(file, str(file.relative_to(folder)), filter=_nameless)


def unpacked(archive: Path, into: Path) -> Path:
    """The checkouts of an archive, in a folder."""
    with tarfile.open(archive) as tar:
        tar.extractall(into, filter="data")
    return into


def _nameless(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """An entry that tells neither who packed it nor when."""
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry


def _source(program: Program, checkouts: Path) -> Path:
    for name in (program.repository.replace("/", "+"), program.repository):
        folder = checkouts / name
        for one in (folder, folder / "repo"):
            if (one / "HEAD").is_file() or (one / ".git").exists():
                return one
        if folder.is_dir():
            return folder
    raise CheckoutError(f"{program.repository} is not among the checkouts")


def _wanted(path: str, prefixes: tuple[str, ...]) -> bool:
    return not prefixes or any(PurePosixPath(path).is_relative_to(one) for one in prefixes)


def _inside(path: str) -> str:
    """Refuses a path that leaves the folder it is unpacked in."""
    if os.path.isabs(path) or ".." in PurePosixPath(path).parts:
        raise CheckoutError(f"{path} leaves its checkout")
    return path
