"""The answer of a search for a batch size, in one sentence."""

from typing import Any

Document = dict[str, Any]
_NOTHING_KNOWN = 10  # an interval so many times as high as low says nothing


def verdict_words(document: Document) -> str:
    """What to do, from what `answer` gives."""
    at, own, largest = document["knee"], document["own"], document["largest"]
    if at is None:
        if largest is None:
            return "No batch size that was tried runs."
        return f"No batch size that runs leaves {document['headroom']:.0%} of memory free."
    batch = at["batch"]
    if batch == own:
        text = f"Keep the program's own batch of {batch:,}: {_none_better(document)}"
    else:
        text = f"Batch {batch:,}: {at['samples_per_s']:,.0f} samples/s{_against(at, own)}"
    if at["growing"]:
        text += "; throughput still grows there"
    once = at["processes"] < 2
    return f"{text}{' (measured once: not confirmed)' if once else ''}."


def _none_better(document: Document) -> str:
    within, stopped = document["within"], document["stopped"] or {}
    if len(document["curve"]) == 1:
        return f"no other could be tried ({stopped.get('words', 'nothing else runs')})"
    return f"no other tried gives over {within:.0%} more samples/s"


def _against(at: Document, own: int | None) -> str:
    gain = at["speedup"]
    if gain is None:
        return ""
    words = f", {gain['ratio']:.2f}× the program's own {own:,}"
    if gain["verdict"] != "UNCLEAR":
        return f"{words} ({gain['low']:.2f}–{gain['high']:.2f})"
    if gain["high"] > _NOTHING_KNOWN * gain["low"]:
        return f"{words} (unclear: processes differ too much to say)"
    return f"{words} ({gain['low']:.2f}–{gain['high']:.2f}, unclear)"
