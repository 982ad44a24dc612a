"""The losses a tune's proof compared, from the journal of its trials."""

import json
from collections.abc import Iterator
from math import nan
from pathlib import Path
from typing import Any, Final

Document = dict[str, Any]
Curves = dict[str, list[list[float]]]
BASE: Final = "base"
CONTROL: Final = "control"
VARIANT: Final = "variant"
_JOURNAL: Final = "journal.jsonl"
_LARGEST: Final = 256 << 20  # bytes


def proof_curves(document: Document, proof: Document | None, folder: Path | None) -> Curves:
    """Losses a step, by role, a list per seed; from the document alone where there is no journal.

    Of the control there is then nothing.
    """
    wanted = set((proof or {}).get("trials") or ())
    found: Curves = {}
    for trial in _trials(folder) if wanted and folder is not None else ():
        if trial.get("number") in wanted and trial.get("losses"):
            found.setdefault(_role(trial["ask"]), []).append(_numbers(trial["losses"]))
    if BASE in found and VARIANT in found:
        return found
    whole = {
        BASE: document["baseline"].get("losses"),
        VARIANT: document["ladder"][-1].get("losses") if document["ladder"] else None,
    }
    return {role: [_numbers(losses)] for role, losses in whole.items() if losses}


def _trials(folder: Path) -> Iterator[Document]:
    """Records of the journal; none of what cannot be read."""
    path = folder / _JOURNAL
    try:
        if path.stat().st_size > _LARGEST:
            return
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                record = json.loads(line)
                if isinstance(record, dict) and isinstance(record.get("trial"), dict):
                    yield record["trial"]
    except (OSError, ValueError):
        return


def _role(ask: Document) -> str:
    if ask.get("perturb"):
        return CONTROL
    return VARIANT if ask.get("fixes") or ask.get("patched") else BASE


def _numbers(losses: list[float | None]) -> list[float]:
    return [nan if loss is None else float(loss) for loss in losses]
