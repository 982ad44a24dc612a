"""A small project of the user's and a run of it, made by hand: what a patch is written from."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from textwrap import dedent
from typing import Any

from stepscope.measure.source_diff import apply_diff
from stepscope.record.fix import OTHER_TARGET, Applied, FixOutcome, FixState, SourceLine, Target
from stepscope.store.source import save_sources
from stepscope.tune.document import TunedPatch
from stepscope.tune.patch import write_patch


@dataclass(frozen=True)
class Project:
    """Files in a working directory, and where they were seen running."""

    cwd: Path
    seen: dict[str, Any]

    def patch(self, *fixes: str, **applied: Applied | list[Applied]) -> TunedPatch:
        """The patch for fixes that took effect as said, by name."""
        outcomes = [
            FixOutcome(name, None, FixState.APPLIED, applied=tuple(_listed(records)))
            for name, records in applied.items()
        ]
        return write_patch(self.cwd, fixes, outcomes, self.seen)

    def patched(self, patch: TunedPatch, name: str = "train.py") -> str:
        """A file once the patch is applied."""
        assert patch.text is not None, patch.by_hand
        apply_diff(self.cwd, patch.text)
        return (self.cwd / name).read_bytes().decode()


def calls_apply(patch: TunedPatch) -> dict[str, str]:
    """The fixes that a patch applies by a call, each with what is said of it."""
    words = {one.fix: one.words for one in patch.edits}
    found = {fix: said for fix, said in words.items() if said.startswith("call stepscope.apply(")}
    assert bool(found) == ("\n+stepscope.apply(" in (patch.text or ""))
    return found


def _listed(records: Applied | list[Applied]) -> list[Applied]:
    return records if isinstance(records, list) else [records]


def at(line: int, file: str = "train.py", **more: Any) -> Applied:
    """A fix took effect on a line."""
    return Applied(OTHER_TARGET, place=SourceLine(file, line), **more)


def half(dtype: str, device: str) -> Applied:
    """A model runs under autocast."""
    return Applied(Target("autocast"), "Net", dtype=dtype, device=device)


def project(
    tmp_path: Path,
    *texts: str,
    program: str = "train.py",
    through: str | None = None,
    **sites: int,
) -> Project:
    """One file `train.py` (and `more1.py` …); `sites`: lines of it by what they do, all of them
    `through` a library."""
    cwd, folder = tmp_path / "project", tmp_path / "run"
    cwd.mkdir()
    folder.mkdir()
    facts: list[dict[str, Any]] = []
    for number, text in enumerate(texts):
        name = f"more{number}.py" if number else "train.py"
        (cwd / name).write_bytes(dedent(text).lstrip("\n").encode())
        facts.append({"what": "optimizer", "file": str(cwd / name), "line": 1})
    for what, line in sites.items():
        file = str(cwd / "train.py")
        facts.append({"what": what, "file": file, "line": line, "through": through})
    lines = [{"fact": "site", "id": n, "function": "", **fact} for n, fact in enumerate(facts)]
    (folder / "facts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    started = (datetime.now(UTC) + timedelta(seconds=1)).isoformat(timespec="seconds")
    save_sources(folder, started)
    seen = {"run": {"folder": str(folder), "program": program, "started": started}}
    return Project(cwd, seen)
