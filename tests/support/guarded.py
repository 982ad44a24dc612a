"""A program run as a trial runs it: in a scratch copy, its writes guarded."""

import hashlib
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import warm

from stepscope.launch.program import child_environment
from stepscope.measure.isolation import cache_environment, trackers_off, writable_folders
from stepscope.measure.scratch_copy import Scratch, make_scratch
from stepscope.record.facts import Facts, WroteOutsideFact
from stepscope.record.probe_options import ProbeOptions, WriteGuard
from stepscope.store.json_lines import read_facts


@dataclass(frozen=True)
class Guarded:
    """How it went."""

    code: int
    said: str
    facts: Facts
    scratch: Scratch

    @property
    def outside(self) -> list[WroteOutsideFact]:
        return self.facts.all(WroteOutsideFact)


def guarded(original: Path, place: Path, refuse: bool = True, above: bool = True) -> Guarded:
    """Run `train.py` of the folder `original` in a scratch copy under `place`.

    `above`: the stand-ins for the folders above it may be written, too.
    """
    scratch = make_scratch(original, place / "scratch")
    run, tmp, caches = (place / name for name in ("run", "tmp", "caches"))
    for folder in (run, tmp, caches):
        folder.mkdir()
    root = [scratch.root] if above else []
    allowed = writable_folders((*root, run, tmp, caches), original)
    options = ProbeOptions(
        folder=str(run),
        launched_ns=time.monotonic_ns(),
        window=0,
        stacks=0,
        guard=WriteGuard(str(scratch.folder), str(original), allowed, refuse),
    )
    variables = {**trackers_off(tmp), **cache_environment(tmp, caches)}
    environ = child_environment(options.to_json(), variables)
    done = warm.execute([sys.executable, "train.py"], scratch.folder, environ)
    facts = read_facts(run / "facts.jsonl")
    return Guarded(done.exit_code, done.stdout + done.stderr, facts, scratch)


def state_of(folder: Path) -> dict[str, tuple[Any, ...]]:
    """Everything that must not change in a tree: names, content, modes, times, inodes, links."""
    found: dict[str, tuple[Any, ...]] = {}
    for here, folders, files in os.walk(folder):
        for path in (here, *(os.path.join(here, name) for name in (*folders, *files))):
            status = os.lstat(path)
            content = os.readlink(path) if os.path.islink(path) else ""
            if os.path.isfile(path) and not content:
                content = hashlib.sha256(Path(path).read_bytes()).hexdigest()
            found[path] = (status.st_mode, status.st_mtime_ns, status.st_ino, content)
    return found


def import_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have children find modules in this folder before all others."""
    known = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), *([known] if known else [])]))
