"""What is made of a public program's bare and observed runs: exit, output, steps, promises.

Everything here is a pure function of what was recorded.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

PROMISED = 1.05
_REDRAWN = re.compile(r"[^\n]*\r(?=[^\n])")  # a progress bar redraws its line as time allows
_TOKEN = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?|[^\W\d]+|[^\w\s]|_")


@dataclass(frozen=True)
class Ran:
    """One run of a program. `exit_code` None: cut after a time, on purpose."""

    exit_code: int | None
    seconds: float
    output: str
    files: Mapping[str, str]
    """Files it made or changed, with digests of their content."""
    error: str = ""
    """The end of its stderr."""


@dataclass(frozen=True)
class Kept:
    """Whether the observed program did what the bare ones do."""

    exit_code: bool | None
    tokens: int
    """Words and numbers of output that both bare runs printed alike, so that can be compared."""
    of_tokens: int
    changed: tuple[str, ...]
    """The first of these that the observed program printed otherwise: bare, observed."""
    files: int
    """Files that both bare runs left alike."""
    of_files: int
    changed_files: tuple[str, ...]

    @property
    def output(self) -> bool:
        return not self.changed and not self.changed_files


def kept(bare: Sequence[Ran], observed: Ran, limited: bool) -> Kept:
    """`limited`: the runs end at different steps, so only what all printed is compared."""
    texts = [_TOKEN.findall(_REDRAWN.sub("", one.output)) for one in (*bare, observed)]
    shortest = min(map(len, texts))
    same_length = len({len(one) for one in texts[:-1]}) == 1
    together = shortest if limited else min(map(len, texts[:-1]))
    first, *others = texts[:-1]
    repeated = [at for at in range(together) if all(one[at] == first[at] for one in others)]
    last = texts[-1]
    changed: tuple[str, ...] = ()
    for at in repeated:
        found = last[at] if at < len(last) else ""
        if found != first[at]:
            changed = (_around(first, at), _around(last, at))
            break
    if not changed and not limited and same_length and len(last) != len(first):
        changed = (_around(first, len(last)), _around(last, len(first)))
    names = set(bare[0].files).intersection(*(one.files for one in bare[1:]))
    alike = sorted(name for name in names if len({one.files[name] for one in bare}) == 1)
    differ = [name for name in alike if observed.files.get(name) != bare[0].files[name]]
    codes = {one.exit_code for one in bare}
    return Kept(
        exit_code=None if limited or len(codes) > 1 else observed.exit_code in codes,
        tokens=len(repeated),
        of_tokens=together,
        changed=changed,
        files=0 if limited else len(alike),
        of_files=0 if limited else len(names),
        changed_files=() if limited else tuple(differ),
    )


def _around(tokens: Sequence[str], at: int) -> str:
    return " ".join(tokens[max(0, at - 8) : at + 3])


def expected_steps(told: int | str | None, limit: int | None, output: str) -> int | None:
    """How many steps a program takes: told, or the last match of a pattern in its output."""
    if isinstance(told, str):
        found = re.findall(told, output)
        told = int(found[-1]) if found else None
    return min(told, limit) if told is not None and limit is not None else told or limit


def observed_facts(document: Mapping[str, Any]) -> dict[str, Any]:
    """Of `show --json`, what is judged and shown."""
    steps, headroom = document["steps"], document["headroom"]
    return {
        "steps": steps["count"], "what": steps["what"], "inferred": steps["inferred"],
        "step_ms": steps["mean_ms"], "measured_steps": steps["measured_steps"],
        "phases_ms": document["phases_ms"], "problems": document["problems"],
        "stopped": document["run"].get("recording_stopped"),
        "others_percent": (document["host"] or {}).get("other_cpu_percent"),
        "gpu_busy": (document["gpu"] or {}).get("busy_fraction"),
        "found": [_finding(one) for one in document["findings"]],
        "minor": [one["id"] for one in document["minor"]],
        "headroom": headroom and {"speedup": headroom["speedup"], "by": headroom["by"]},
    }  # fmt: skip


def _finding(one: Mapping[str, Any]) -> dict[str, Any]:
    promise, where = one["predicted"], one["where"]
    at = where[0] if where else None
    return {
        "id": one["id"],
        "promised": promise and promise["speedup"],
        "fix": fix_argument(one["fix"]),
        "refused": [refused["fix"] for refused in one["refused"]],
        "at": at and at["file"] and f"{at['file'].rsplit('/', 1)[-1]}:{at['line']}",
    }


def fix_argument(fix: Mapping[str, Any] | None) -> str | None:
    """As `run --fix` takes it."""
    if fix is None:
        return None
    return str(fix["name"]) if fix["value"] is None else f"{fix['name']}={fix['value']}"


def promises(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Each fix promised to be worth something, with its range."""
    found: dict[str, dict[str, Any]] = {}
    for one in document["findings"]:
        name, promise = fix_argument(one["fix"]), one["predicted"]
        if name is None or promise is None or promise["speedup"] < PROMISED:
            continue
        told = {"fix": name, "finding": one["id"]}
        told |= {key: promise[key] for key in ("speedup", "low", "high")}
        found.setdefault(name, told)
    return list(found.values())


def measured(
    promise: dict[str, Any], base: Sequence[Mapping[str, Any]], fixed: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """A promise with the `steps` of runs in turn, without and with its fixes: the median ratio of
    their pairs, per sample where every run tells how many a step has."""
    known = all(one["samples_per_step"] for one in (*base, *fixed))
    took = [[_step_ms(one, known) for one in side] for side in (base, fixed)]
    pairs = sorted(before / after for before, after in zip(*took, strict=True))
    return promise | {
        "measured": median(pairs), "pairs": pairs, "base_ms": took[0], "fixed_ms": took[1],
        "per_sample": known,
    }  # fmt: skip


def _step_ms(steps: Mapping[str, Any], per_sample: bool) -> float:
    mean = float(steps["mean_ms"])
    return mean / float(steps["samples_per_step"]) if per_sample else mean


def tuned(document: Mapping[str, Any]) -> dict[str, Any]:
    """Of `tune --json`, what is judged and shown."""
    final, patch = document["final"], document["patch"]
    return {
        "stopped": document["stopped"], "trials": document["trials"],
        "seconds": document["seconds"],
        "ladder": [
            {
                "fix": rung["label"], "speedup": rung["speedup"],
                "predicted": rung["predicted_speedup"], "proof": _proof(rung["proof"]),
            }
            for rung in document["ladder"]
        ],
        "rejected": {one["fix"]: one["because"]["reason"] for one in document["rejected"]},
        "final": final
        and {key: final[key] for key in ("speedup", "low", "high", "verdict", "confirmed")}
        | {"proof": _proof(final["proof"])},
        "patch": patch and {
            "status": patch["status"], "speedup": patch["speedup"],
            "edits": len(patch["edits"]), "by_hand": [one["fix"] for one in patch["by_hand"]],
        },
    }  # fmt: skip


def _proof(proof: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if proof is None:
        return None
    because = proof["because"]
    told = {"state": proof["state"], "because": because and because["reason"]}
    return told | {"steps": proof["steps"], "seeds": proof["seeds"]}


def as_document(found: Kept) -> dict[str, Any]:
    return asdict(found) | {"output": found.output}
