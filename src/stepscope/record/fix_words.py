"""What a fix did, in words: the one place where its records become sentences.

Here rather than in `report`, since the program's own process writes them into its facts and prints
the one for a fix that broke it.
"""

from dataclasses import fields
from typing import Any, Final

from stepscope.record.fix import (
    LOADER,
    OPTIMIZER,
    Applied,
    Broke,
    DataChange,
    FixOutcome,
    NotApplied,
    SourceLine,
    Trait,
    TraitKind,
    Variation,
)
from stepscope.record.units import format_bytes

_SAMPLER: Final = (
    TraitKind.SAMPLER_SHARES_GENERATOR,
    TraitKind.SAMPLER_MAY_DRAW,
    TraitKind.SAMPLER_CHANGES,
)
_OPEN: Final = {
    "h5py": "an open HDF5 file",
    "sqlite3": "an open SQLite connection",
    "lmdb": "an open LMDB environment",
    "zipfile": "an open zip file",
    "tarfile": "an open tar file",
    "netCDF4": "an open netCDF file",
}


def sentence(one: Applied | NotApplied) -> str:
    """What a fix took effect on, why it did not, or why the program failed with it."""
    if one.text is not None:
        return one.text
    shown: dict[str, Any] = {each.name: getattr(one, each.name) for each in fields(one)}
    shown["at"] = _at(one.place)
    if isinstance(one, Applied):
        shown |= {
            "change": "" if one.before is None else f": {one.before} → {one.after}",
            "varies": f" ({variation_words(one.varies)})" if one.varies else "",
            "size": format_bytes(one.after) if isinstance(one.after, int) else "",
            "all": one.total,
            "total": "" if one.total is None else f" of {one.total:,}",
            "detail": one.detail or "",
        }
        text = one.target.words.format_map(shown)
        return (
            text
            + (" (a class of torch.nn)" if one.of_torch_nn else "")
            + (one.target.remark if one.remark else "")
        )
    shown |= {
        "subject": _subject(one),
        "trait": "" if one.trait is None else trait_words(one.trait),
        "varies": "" if one.varies is None else variation_words(one.varies),
        "raised": f" (at {one.raised})" if one.raised else "",
        "before": f" (before {one.place})" if one.place else "",
        "left": f": {one.object} left unchanged" if one.object else "",
    }
    text = one.reason.words.format_map(shown)
    unplaced = isinstance(one, Broke) and "{at}" not in one.reason.words
    return f"{text} (at {one.place})" if unplaced and one.place else text


def reason_words(one: FixOutcome) -> list[str]:
    """Why a fix did not apply in places, and last, why it broke the program."""
    return [*map(sentence, one.not_applied), *([] if one.broke is None else [sentence(one.broke)])]


def trait_words(one: Trait) -> str:
    """What was found in the code that makes samples."""
    inside = f" ({one.code!r})" if one.code else f" in {one.file}" if one.file else ""
    return one.what.words.format(
        code=one.code,
        at=_at(one.place),
        in_code=inside,
        library=_OPEN.get(one.code or "", "an open file"),
        because="" if one.because is None else trait_words(one.because),
    )


def outcome_json(one: FixOutcome) -> dict[str, object]:
    """As stored in documents and journals: the records and their sentences."""
    return {
        "name": one.name,
        "value": one.value,
        "state": str(one.state),
        "kind": None if one.kind is None else str(one.kind),
        "where": [sentence(applied) for applied in one.applied],
        "reasons": reason_words(one),
        "applied": [applied.to_json() for applied in one.applied],
        "not_applied": [refused.to_json() for refused in one.not_applied],
        "broke": None if one.broke is None else one.broke.to_json(),
    }


def variation_words(one: Variation) -> str:
    """How batches differ, and why."""
    if one.data == DataChange.ORDER or one.because is None:
        return one.data.words
    reason = trait_words(one.because)
    if one.because.what in _SAMPLER:
        return reason
    text = f"{'' if one.certain else 'perhaps '}{one.data.words}: {reason}"
    return f"{text} runs on one thread in a worker" if one.data == DataChange.ROUNDING else text


def _at(place: SourceLine | None) -> str:
    return f" at {place}" if place else ""


def _subject(one: NotApplied) -> str:
    if one.target == LOADER:
        return f"the DataLoader at {one.place}" if one.place else "a DataLoader"
    if one.place is None:
        return str(one.object)
    verb = " made" if one.target == OPTIMIZER else ", called"
    return f"{one.object}{verb} at {one.place}"
