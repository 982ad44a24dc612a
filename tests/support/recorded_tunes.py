"""Tunes kept as archives: the program, the scout and the journal, from which a search decides anew.

python tests/support/recorded_tunes.py FOLDER ARCHIVE.zip

keeps the tune in FOLDER/tune of the program in FOLDER. Journals written before records were typed
say what a fix did in words alone: the places those name become records here.
"""

import json
import os
import re
import shutil
import sys
import zipfile
from pathlib import Path
from typing import Any

PROJECT = "/home/me/project"
"""What the folder of the program is called in an archive."""
_SCOUT = Path("tune", "trials", "0001")
_LEFT_OUT = ("lock", "output.txt", "stacks.pt.trace.json.gz")
_TEXTS = (".json", ".jsonl")
_PLACE = re.compile(r"\bat (\S+):(\d+)")
_MODEL = re.compile(r"(\S+), called at ")
_CAST = re.compile(r"(\S+) in (bf16|fp16) on (\w+)")


def pack(folder: Path, archive: Path) -> None:
    """Keep what the search looks at; trials but the first one are in the journal."""
    kept = [
        *sorted(folder.glob("*.py")),
        *(folder / "tune" / name for name in ("journal.jsonl", "tune.json")),
        *sorted(path for path in (folder / _SCOUT).iterdir() if path.name not in _LEFT_OUT),
    ]
    archive.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(archive, "w") as packed:
        for path in kept:
            entry = zipfile.ZipInfo(str(path.relative_to(folder)))
            entry.compress_type = zipfile.ZIP_LZMA
            content = path.read_bytes()
            if path.suffix in _TEXTS:
                content = content.replace(str(folder.resolve()).encode(), PROJECT.encode())
            packed.writestr(entry, content)


def lay_out(recorded: Path, place: Path, upgrade: bool = True) -> None:
    """The program with its tune in a new folder, from an archive or from a folder like it.

    `upgrade` a journal of schema 1 to what this tree reads; a tree before it reads the journal as
    it was, with the records added.
    """
    if recorded.suffix == ".zip":
        with zipfile.ZipFile(recorded) as packed:
            packed.extractall(place)
    else:
        shutil.copytree(recorded, place)
    for path in (*(place / "tune").glob("*.json*"), *(place / _SCOUT).glob("*.json*")):
        if path.suffix in _TEXTS:
            text = path.read_text()
            for old in (PROJECT, str(recorded.resolve())):
                text = text.replace(old, str(place))
            path.write_text(text)
    for source in place.glob("*.py"):
        os.utime(source, (0, 0))  # a file changed since the scout started gets no patch
    journal = place / "tune" / "journal.jsonl"
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    for line in lines[1:]:
        for outcome in line["trial"]["fixes"]:
            if "applied" not in outcome:
                outcome |= _records(outcome)
        if upgrade and "why" in line["trial"]:
            line["trial"] |= _typed(line["trial"])
    if upgrade:
        lines[0]["schema"] = "stepscope.tune-journal/2"
    journal.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def request_of(place: Path) -> dict[str, Any]:
    """What the tune was asked for, the budget in seconds included."""
    first = json.loads((place / "tune" / "journal.jsonl").read_text().partition("\n")[0])
    document = json.loads((place / "tune" / "tune.json").read_text())
    return {**first["asked"], "budget_s": document["request"]["budget_s"]}


def options_of(place: Path) -> list[str]:
    """The same as options and arguments of `stepscope tune`."""
    asked = request_of(place)
    words = ["--budget", f"{asked['budget_s']}s"]
    for name in ("allow", "objective", "steps", "seeds", "on"):
        words += [] if asked[name] is None else [f"--{name}", str(asked[name])]
    for name in ("only", "skip"):
        words += ["--" + name, ",".join(asked[name])] if asked[name] else []
    return [*words, asked["program"], *asked["argv"]]


def _records(outcome: dict[str, Any]) -> dict[str, Any]:
    """What a tree that kept sentences read in them."""
    return {
        "applied": [_applied(text, outcome["kind"]) for text in outcome["where"]],
        "not_applied": [{"reason": "other", "detail": text} for text in outcome["reasons"]],
        "broke": None,
    }


_REASONS = {
    "not_applicable": "fix_not_applied",
    "broke": "fix_broke",
    "out_of_memory": "allocation_failed",
    "timed_out": "hung",
    "too_short": "too_few_steady",
}


def _typed(trial: dict[str, Any]) -> dict[str, Any]:
    """What schema 2 has in place of the sentences of a trial, and where something is not known."""
    return {
        "reason": trial["why"] and _REASONS.get(trial["status"], "program_failed"),
        "detail": trial["why"],
        "notes": [{"kind": "unstable", "detail": text} for text in trial["notes"]],
        "proof": {name: value for name, value in trial["proof"].items() if value is not None},
        "steady": len(trial["step_ms"]),
    }


def _applied(text: str, kind: str | None) -> dict[str, Any]:
    found: dict[str, Any] = {"target": "other", "detail": text, "kind": kind}
    if at := _PLACE.search(text):
        found["place"] = {"file": at[1], "line": int(at[2])}
    if model := _MODEL.search(text):
        found["object"] = model[1]
    if cast := _CAST.search(text):
        found |= {"object": cast[1], "dtype": cast[2], "device": cast[3]}
    return found


if __name__ == "__main__":
    pack(Path(sys.argv[1]), Path(sys.argv[2]))
