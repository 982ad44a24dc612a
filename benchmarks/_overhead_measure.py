"""Measuring one step length, in blocks and across processes, within a time given."""

import time
from dataclasses import asdict, replace
from statistics import median
from typing import Any

from _overhead_children import (
    RECORDINGS,
    MissingProgramError,
    Setting,
    across,
    bare_step_ms,
    blocks,
    steady_ns,
    warmup_s,
)
from _overhead_stats import estimate, goal_for, neighbours, pairs_of

BLOCKS_SHARE = 0.25  # of the time for a program; the rest goes to whole processes
START_S = {"cpu": 6.0, "cuda": 20.0}  # a first guess; later starts are measured
PROCESS_S = 40.0  # of blocks, before another process is worth its start


def measure(setting: Setting, seconds: float, most_pairs: int, most_blocks: int) -> dict[str, Any]:
    """Everything about one program."""
    until = time.monotonic() + seconds
    try:
        blocks_s = _blocks_s(setting, seconds) if most_pairs else seconds
        inside = _inside(setting, blocks_s, most_blocks)
    except MissingProgramError as problem:
        return {"program": setting.program, "missing": str(problem)}
    first = inside["runs"][0]
    setting = replace(setting, size=first["size"] or None)
    step_ms = _step_ms(inside["runs"])
    left = until - time.monotonic()
    whole: dict[str, Any] = {"estimates": {}, "rounds": []}
    if left > 0 and most_pairs:
        try:
            whole = _whole(setting, left, most_pairs)
        except RuntimeError as problem:  # what the blocks have shown stands
            whole["problem"] = str(problem).splitlines()[-1]
    return {
        "program": setting.program,
        "step_ms": step_ms,
        "goal": goal_for(step_ms),
        "modules": first["modules"],
        "parameters": first["parameters"],
        "size": first["size"],
        "blocks": inside,
        "processes": whole,
    }


def _blocks_s(setting: Setting, seconds: float) -> float:
    """Seconds for the blocks: their share, or less where one round of processes needs the rest."""
    process_s = START_S[setting.device] / 2 + setting.shape.process * setting.ms * 1.2 / 1000
    return max(seconds / 4, min(seconds * BLOCKS_SHARE, seconds - 3 * process_s))


def block_estimates(rounds: list[list[dict[str, Any]]]) -> dict[str, Any]:
    """Observed against both bare blocks of its round, and these against each other.

    By whole blocks, and by each block's median step.
    """
    found = {}
    for clock, suffix in (("block_ns", ""), ("step_ns", "_step")):
        times = [{block["kind"]: block[clock] for block in order} for order in rounds]
        against = [time | {"both": (time["bare"] + time["control"]) / 2} for time in times]
        found["observed" + suffix] = asdict(estimate(pairs_of(against, "observed", "both")))
        found["control" + suffix] = asdict(estimate(pairs_of(times, "control", "bare")))
    return found


def recording_estimates(runs: list[list[list[dict[str, Any]]]]) -> dict[str, Any]:
    """What stays of recordings, from the rounds of several processes: observed blocks after one or
    two against the bare ones of their round, and bare blocks after them against those before any.
    The latter are minutes apart; `drift` is how far two halves of the blocks before any differ."""
    found = {}
    for number in range(1, RECORDINGS + 1):
        after = [order for rounds in runs for order in rounds if _recorded(order) == number]
        if not after:
            continue
        found[f"observed_after_{number}"] = block_estimates(after)["observed"]
        pairs = [
            pair
            for rounds in runs
            for pair in zip(_bare_ns(rounds, number), _bare_ns(rounds, 0), strict=False)
        ]
        found[f"bare_after_{number}"] = asdict(estimate(pairs))
    halves: list[tuple[float, float]] = []
    for rounds in runs:
        before = _bare_ns(rounds, 0)
        halves += zip(before[len(before) // 2 :], before, strict=False)
    return found | ({"drift": asdict(estimate(halves))} if halves else {})


def _recorded(order: list[dict[str, Any]]) -> int:
    return int(order[0]["recorded"])


def _bare_ns(rounds: list[list[dict[str, Any]]], recorded: int) -> list[float]:
    """The bare blocks of each round that came after so many recordings."""
    times = [
        {block["kind"]: block["block_ns"] for block in order}
        for order in rounds
        if _recorded(order) == recorded
    ]
    return [float(time["bare"] + time["control"]) for time in times]


def _inside(setting: Setting, seconds: float, most: int) -> dict[str, Any]:
    """Blocks inside one process, several such processes one after the other where time allows."""
    count = max(1, min(3, int(seconds // PROCESS_S)))
    until = time.monotonic() + seconds
    start_s = START_S[setting.device]
    runs: list[dict[str, Any]] = []
    for seed in range(count):
        begun = time.monotonic()
        planned_s = max(1.0, (until - begun) / (count - seed) - start_s)
        ran = blocks(setting, planned_s, -(-most // count), seed)
        start_s = max(1.0, time.monotonic() - begun - planned_s)
        setting = replace(setting, size=ran["size"] or None)
        runs.append(ran)
    processes = [ran["rounds"] for ran in runs]
    rounds = [order for rounds in processes for order in rounds if not _recorded(order)]
    return {
        "estimates": block_estimates(rounds) | recording_estimates(processes),
        "added_us": median(map(_added_ns, rounds)) / 1000,
        "runs": runs,
    }


def _whole(setting: Setting, seconds: float, most: int) -> dict[str, Any]:
    """Whole processes, bare and observed."""
    shape = setting.shape
    rounds = across(setting, seconds, most, seed=setting.ms)
    times = [{ran["variant"]: steady_ns(ran, shape) for ran in order} for order in rounds]
    starts = [{ran["variant"]: warmup_s(ran, shape) for ran in order} for order in rounds]
    pairs = {kind: pairs_of(times, kind, "bare") for kind in ("observed", "windowed")}
    pairs["control"] = neighbours(times, "bare")
    bare = [
        next(bare_step_ms(ran, shape) for ran in order if ran["variant"] == "bare")
        for order in rounds
    ]
    for kind in ("observed", "windowed"):
        pairs[f"{kind}_told"] = [
            (float(ran["observed"]["mean_ms"]), step_ms)
            for order, step_ms in zip(rounds, bare, strict=True)
            for ran in order
            if ran["variant"] == kind
        ]
    return {
        "estimates": {kind: asdict(estimate(some)) for kind, some in pairs.items() if some},
        "window_s": median(a - b for a, b in pairs_of(starts, "windowed", "observed")),
        "rounds": rounds,
    }


def _step_ms(runs: list[dict[str, Any]]) -> float:
    """How long a bare step usually takes."""
    every = [block for ran in runs for order in ran["rounds"] for block in order]
    bare = [block["block_ns"] for block in every if block["kind"] == "bare"]
    return float(median(bare)) / float(runs[0]["block_steps"]) / 1e6


def _added_ns(order: list[dict[str, Any]]) -> float:
    """What the median step of a round's observed block takes more than that of its bare ones."""
    took = {block["kind"]: float(block["step_ns"]) for block in order}
    return took["observed"] - (took["bare"] + took["control"]) / 2
