"""What became of the fixes a run was asked for."""

from collections.abc import Iterable, Mapping
from typing import Any


def applied_fixes(
    facts: Iterable[Mapping[str, Any]], asked: Iterable[str] = ()
) -> list[dict[str, Any]]:
    """One entry per fix, in the order they were put in place; `asked` is what the run was given.

    `state` is "broke", "applied" or "not applicable"; `where` says on what it took hold, `reasons`
    why not elsewhere; `kind` is the least exact one that was said.
    """
    order = ["exact", "numeric", "semantic"]
    found: dict[str, dict[str, Any]] = {}
    for fact in facts:
        name = fact["name"]
        if fact["state"] == "asked":
            found[name] = {
                "name": name,
                "value": fact["value"],
                "state": "not applicable",
                "kind": None,
                "where": [],
                "reasons": [],
                "missing": fact["text"],
            }
            continue
        entry = found[name]
        if fact["state"] == "applied":
            entry["where"].append(fact["text"])
            entry["kind"] = max(entry["kind"] or "exact", fact["kind"], key=order.index)
        else:
            entry["reasons"].append(fact["text"])
        if fact["state"] == "broke" or (fact["state"] == "applied" and entry["state"] != "broke"):
            entry["state"] = fact["state"]
    for entry in found.values():
        missing = entry.pop("missing")
        if entry["state"] == "not applicable" and not entry["reasons"]:
            entry["reasons"] = [missing]
    return [*found.values(), *(_never(text) for text in asked if text.split("=")[0] not in found)]


def _never(text: str) -> dict[str, Any]:
    """A fix that was asked for in a program that never imported torch."""
    name, _, value = text.partition("=")
    return {
        "name": name,
        "value": value or None,
        "state": "not applicable",
        "kind": None,
        "where": [],
        "reasons": ["the program did not import torch"],
    }
