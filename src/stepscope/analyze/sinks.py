"""The largest time sinks of a step, each with its place in the source."""

from typing import Any

_TITLES = {
    "data_wait": "waiting for the data loader",
    "h2d": "copying batches to the device",
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "other": "other code of the program",
}
_COUNT = 3


def sinks(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The three largest phases of a step: title, ms, share, file, line, detail."""
    total = document["steps"]["mean_ms"]
    if not total:
        return []
    ranked = sorted(document["phases_ms"].items(), key=lambda item: -item[1])
    return [
        {"phase": phase, "title": _TITLES[phase], "ms": ms, "share": ms / total}
        | _place(phase, document)
        for phase, ms in ranked[:_COUNT]
        if ms > 0.01 * total
    ]


def _place(phase: str, document: dict[str, Any]) -> dict[str, Any]:
    wanted = {phase, "evaluation"} if document["steps"]["what"] == "inference" else {phase}
    if phase == "h2d":
        wanted = {"h2d"}
    site = next((s for s in document["sites"] if s["what"] in wanted), None)
    place: dict[str, Any] = {"file": None, "line": None, "detail": None}
    if site is not None:
        place |= {"file": site["file"], "line": site["line"]}
    if phase == "data_wait":
        place["detail"] = _loader_detail(document)
    elif phase == "h2d":
        copy = next((s for s in document["syncs"] if s["what"] == "pageable copy"), None)
        if copy is not None:
            place |= {"file": copy["file"], "line": copy["line"]}
            place["detail"] = "from pageable memory: the host waits for each copy"
    elif phase == "other":
        place |= _longest_wait(document)
    return place


def _longest_wait(document: dict[str, Any]) -> dict[str, Any]:
    """The line that waits longest for the device, where that is most of what is left over."""
    sync = next(iter(document["syncs"]), None)
    steps, other = document["steps"]["count"], document["phases_ms"]["other"]
    if sync is None or sync["lost_ms"] / steps < other / 2:
        return {}
    detail = f"{sync['what']} waits for the device"
    return {"file": sync["file"], "line": sync["line"], "detail": detail}


def _loader_detail(document: dict[str, Any]) -> str | None:
    loader = next(iter(document["loaders"]), None)
    if loader is None:
        return None
    text = f"num_workers={loader['num_workers']}"
    for source in document["pipeline"]:
        part = next((p for p in source["parts"] if p["what"] != "rest"), None)
        if part is not None and part["share"] >= 0.2:
            where = f", {_short(part['file'])}:{part['line']}" if part["file"] else ""
            text += f"; {part['name']}{where} is {part['share']:.0%} of it"
            break
    return text


def _short(file: str) -> str:
    return file.rsplit("/", 1)[-1]
