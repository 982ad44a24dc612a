"""A program run as a trial runs it: in a scratch copy, its writes guarded."""

import hashlib
import os
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import warm

from stepscope.launch.program import child_environment
from stepscope.measure.isolation import isolated
from stepscope.measure.scratch_copy import Scratch, make_scratch
from stepscope.probe.guard.walls import find_wall
from stepscope.record.facts import Facts, WroteOutsideFact
from stepscope.record.probe_options import ProbeOptions, Wall
from stepscope.store.json_lines import read_facts

_PATH = os.environ.get("PYTHONPATH")


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


def guarded(
    original: Path,
    place: Path,
    refuse: bool = True,
    above: bool = True,
    wall: Wall | None = None,
) -> Guarded:
    """Run `train.py` of the folder `original` in a scratch copy under `place`.

    `above`: the stand-ins for the folders above it may be written, too. `wall`: None for the one
    that trials would have.
    """
    scratch = make_scratch(original, place / "scratch")
    run, tmp = place / "run", place / "tmp"
    for folder in (run, tmp):
        folder.mkdir()
    if wall is None:
        wall = find_wall() if refuse else Wall.NONE
    with isolated(place, run, tmp, scratch, refuse, wall) as (variables, guard):
        if not above:
            kept = (one for one in guard.allowed if one != str(scratch.root.resolve()))
            guard = replace(guard, allowed=tuple(kept))
        options = ProbeOptions(
            folder=str(run), launched_ns=time.monotonic_ns(), window=0, stacks=0, guard=guard
        )
        environ = child_environment(options.to_json(), variables)
        command = [sys.executable, "train.py"]
        if os.environ.get("PYTHONPATH") == _PATH:
            done = warm.execute(command, scratch.folder, environ)
        else:  # read by an interpreter that starts
            ended = subprocess.run(
                command, cwd=scratch.folder, env=environ, capture_output=True, text=True
            )
            done = warm.Said(ended.returncode, ended.stdout, ended.stderr)
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
