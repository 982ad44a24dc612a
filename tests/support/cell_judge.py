"""Whether a program with some fixes did what they say.

A cell is a program with some fixes. It
- `runs` if all of them applied and the losses are what they must be: the same bit for bit as
  without those that called themselves exact, near them with numeric ones, finite with others;
- is `not applicable` if it went just as well, but some had nothing to take hold of (`why` says);
- `stops` if the program ended with a fix's own reason;
- is `declared bad` if the fixes say that they do not go together;
- was `not run` if the time was over before;
- is `broken` otherwise.
"""

import math
from dataclasses import dataclass
from typing import Any

NEAR, ABOUT = (1e-3, 1e-4), (0.25, 0.2)
"""How far losses may be apart, relative and absolute: in runs that do not repeat to the last bit,
and with numeric fixes, other random draws included."""
BY_THE_CLOCK = ("cudnn_benchmark",)
"""Fixes that choose kernels by how long they take: no two runs need choose the same."""


@dataclass(frozen=True)
class Cell:
    """What became of a program with some fixes."""

    program: str
    fixes: tuple[str, ...]
    state: str
    why: str
    held: int = 0
    """How many of the fixes applied."""
    seconds: float = 0.0


class Table:
    """The cells of one program, judged against its bare runs and against its fixes alone."""

    def __init__(self, program: str, bare: list[dict[str, Any]]) -> None:
        self.program = program
        self._plain: dict[frozenset[str], list[dict[str, Any]]] = {frozenset(): bare}

    @property
    def repeatable(self) -> bool:
        """Whether the bare program gives the same losses each time."""
        return _same(self._plain[frozenset()])

    def remember(self, ended: dict[str, Any]) -> None:
        """For others to be compared with."""
        self._plain.setdefault(frozenset(ended["fixes"]), []).append(ended)

    def judge(self, ended: dict[str, Any]) -> Cell:
        """A cell of what came of it."""
        state, why = self._verdict(ended)
        held = sum(fix["state"] == "applied" for fix in ended["became"])
        return Cell(self.program, tuple(ended["fixes"]), state, why, held, ended["seconds"])

    def _verdict(self, ended: dict[str, Any]) -> tuple[str, str]:
        became = ended["became"]
        if ended["exit_code"] is None:
            return "broken", f"still running after {ended['seconds']:.0f} s"
        for fix in became:
            if fix["state"] == "broke":
                return "stops", f"{fix['name']}: {fix['reasons'][-1]}"
        problem = _problem(ended) or self._difference(ended)
        if problem:
            return "broken", problem
        idle = [fix for fix in became if fix["state"] != "applied"]
        if idle:
            return "not applicable", "; ".join(f"{f['name']}: {f['reasons'][0]}" for f in idle)
        return "runs", ""

    def _difference(self, ended: dict[str, Any]) -> str | None:
        """How the losses differ from what they must be; None if they do not."""
        names = {text.split("=")[0]: text for text in ended["fixes"]}
        kinds = {fix["name"]: fix["kind"] for fix in ended["became"] if fix["kind"]}
        changing = frozenset(names[name] for name, kind in kinds.items() if kind != "exact")
        models = self._plain.get(changing)
        if models and changing != frozenset(ended["fixes"]):
            than = f"with {' and '.join(sorted(changing))} alone" if changing else "without fixes"
            timed = any(name in names and names[name] in changing for name in BY_THE_CLOCK)
            if self.repeatable and _same(models) and not timed:
                same = _result(ended) == _result(models[0])
                return None if same else f"exact, but not as {than}: {_shown(models[0], ended)}"
            apart = ABOUT if timed else NEAR
            near = _close(models[0]["losses"], ended["losses"], apart)
            shown = _shown(models[0], ended, apart)
            return None if near else f"exact, but far from {than}: {shown}"
        bare = self._plain[frozenset()][0]
        if "semantic" not in kinds.values() and not _close(bare["losses"], ended["losses"], ABOUT):
            return f"numeric, but far from the bare program: {_shown(bare, ended, ABOUT)}"
        return None


def _problem(ended: dict[str, Any]) -> str | None:
    """What went wrong in a program that no fix takes the blame for."""
    if ended["exit_code"] != 0:
        lines = [line for line in ended["stderr"].splitlines() if line.strip()]
        return f"exit code {ended['exit_code']}: {lines[-1] if lines else 'not a word'}"
    if len(ended["became"]) != len(ended["fixes"]):
        return "a fix was not put in place"
    for fix in ended["became"]:
        for reason in fix["reasons"]:
            if reason.startswith("could not be installed"):
                return f"{fix['name']}: {reason}"
    if ended["problems"]:
        return f"the observer gave up: {ended['problems'][0]}"
    if not ended["losses"] or not all(map(math.isfinite, ended["losses"])):
        return f"losses are not finite: {ended['losses'][:4]}"
    return None


def _result(ended: dict[str, Any]) -> Any:
    return ended["losses"], ended["said"]


def _same(several: list[dict[str, Any]]) -> bool:
    return all(_result(one) == _result(several[0]) for one in several)


def _close(one: list[float], two: list[float], apart: tuple[float, float]) -> bool:
    relative, absolute = apart
    return len(one) == len(two) and all(
        math.isclose(a, b, rel_tol=relative, abs_tol=absolute)
        for a, b in zip(one, two, strict=True)
    )


def _shown(
    one: dict[str, Any], two: dict[str, Any], apart: tuple[float, float] = (0.0, 0.0)
) -> str:
    """The first losses that are farther apart than that."""
    if len(one["losses"]) != len(two["losses"]):
        return f"{len(one['losses'])} losses, then {len(two['losses'])}"
    for place, (a, b) in enumerate(zip(one["losses"], two["losses"], strict=True)):
        if not _close([a], [b], apart):
            return f"loss {place}: {a!r}, then {b!r}"
    return f"{one['said']}, then {two['said']}"
