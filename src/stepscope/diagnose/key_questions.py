"""The questions of a baseline analysis, answered outright."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from stepscope.diagnose.case import Case, in_ms
from stepscope.diagnose.headroom import Headroom
from stepscope.record.finding import Finding

_CAUSES = {
    "loader": "the data loader",
    "host": "a host that launches too slowly",
    "synchronisation": "synchronisations",
    "copy": "copies",
    "other_ranks": "other ranks",
    "between_kernels": "the time between kernels",
    "unknown": "what was not recorded",
}
_NOTICEABLE = 0.05
_BUSY = 0.9  # a device busy that much sets the pace
_NO_GPU = "no GPU: the program computes on the CPU"
_NOT_SEEN = "not known: no kernels were recorded"
_BOTTLENECKS = 3


@dataclass(frozen=True, slots=True)
class Answer:
    """A question, its answer in words, and the number in it; None where there is none."""

    question: str
    answer: str
    value: float | None = None
    unit: str = ""

    def to_json(self) -> dict[str, Any]:
        """As `show --json` has it."""
        return asdict(self)


def answer_questions(
    case: Case, findings: Sequence[Finding], headroom: Headroom | None
) -> tuple[Answer, ...]:
    """All questions, always in the same order."""
    seen = _StepShares(case)
    return (
        _utilisation(seen),
        _gaps(seen),
        _copies(seen),
        _waiting(seen),
        *_kernels(seen),
        _launches(seen),
        _processor(seen),
        _bottlenecks(findings),
        _potential(headroom),
    )


class _StepShares:
    """What the documents tell of a step, as shares of it."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.gpu = case.device == "cuda"
        self.trace: Mapping[str, Any] = (case.trace or {}) if self.gpu else {}
        self.steps = self.trace["steps"]["count"] if self.trace else 0
        self.busy = self._busy()

    def _busy(self) -> float | None:
        known = ((self.case.show or {}).get("gpu") or {}).get("busy_fraction")
        if known is not None or not self.trace:
            return None if known is None else float(known)
        parts = self.trace["breakdown_ns"]
        if parts["idle"] is None or not parts["wall"]:
            return None
        return float(1 - parts["idle"] / parts["wall"])

    def idle_causes(self) -> Iterator[tuple[float, str]]:
        """Parts of the idle time in the window, the largest first."""
        idle = {key: ns for key, ns in (self.trace.get("idle_ns") or {}).items() if ns}
        total = sum(idle.values())
        for cause, ns in sorted(idle.items(), key=lambda item: (-item[1], item[0])):
            yield ns / total, cause


def _utilisation(seen: _StepShares) -> Answer:
    question = "What is the mean GPU utilisation?"
    if not seen.gpu:
        host = ((seen.case.show or {}).get("host") or {}).get("cpu_percent")
        used = "" if host is None else f"; program and workers use {host / 100:.1f} cores"
        return Answer(question, _NO_GPU + used)
    if seen.busy is None:
        return Answer(question, _NOT_SEEN)
    return Answer(question, f"it works {seen.busy:.0%} of a step", 100 * seen.busy, "%")


def _gaps(seen: _StepShares) -> Answer:
    question = "Are there gaps between the GPU's work, and what causes them?"
    if not seen.gpu:
        return Answer(question, _NO_GPU)
    if seen.busy is None:
        return Answer(question, _NOT_SEEN)
    idle = 1 - seen.busy
    if idle < _NOTICEABLE:
        return Answer(question, f"hardly: it is idle {idle:.0%} of a step", 100 * idle, "%")
    causes = [
        f"{_CAUSES.get(cause, cause)} {share:.0%}"
        for share, cause in seen.idle_causes()
        if share >= _NOTICEABLE
    ]
    of_it = f"; of that {', '.join(causes[:3])}" if causes else ""
    return Answer(question, f"yes: it is idle {idle:.0%} of a step{of_it}", 100 * idle, "%")


def _copies(seen: _StepShares) -> Answer:
    question = "How long do copies to the device take, and do they overlap with compute?"
    if not seen.gpu:
        return Answer(question, _NO_GPU)
    copies = [one for one in seen.trace.get("copies", ()) if one["direction"] == "HtoD"]
    if seen.trace and not copies:
        return Answer(question, "there are none", 0.0, "ms")
    total = sum(one["total_ns"] for one in copies)
    if not total:
        host = seen.case.phases.get("h2d")
        told = (
            _NOT_SEEN
            if host is None
            else f"{in_ms(host)} ms of a step; what hides them was not recorded"
        )
        return Answer(question, told, host, "ms" if host is not None else "")
    ms = total / seen.steps / 1e6
    hidden = sum(one["total_ns"] * one["overlapped"] for one in copies) / total
    memory = " and ".join(sorted({str(one["memory"]) for one in copies}))
    words = f"{in_ms(ms)} ms of a step from {memory} memory, {hidden:.0%} of it behind compute"
    return Answer(question, words, ms, "ms")


def _waiting(seen: _StepShares) -> Answer:
    question = "What share of a step is spent waiting for data?"
    case = seen.case
    if case.phases:
        share = case.phases.get("data_wait", 0.0) / case.step_ms
    elif seen.trace and seen.trace["idle_ns"]["loader"] is not None:
        share = seen.trace["idle_ns"]["loader"] / seen.trace["breakdown_ns"]["wall"]
    else:
        return Answer(question, "not known: the recording does not tell")
    return Answer(question, f"{share:.0%}, {in_ms(share * case.step_ms)} ms", 100 * share, "%")


def _kernels(seen: _StepShares) -> tuple[Answer, Answer]:
    questions = ("How many kernels does a step run?", "How long is a kernel on average?")
    launch = seen.trace.get("launch")
    if not seen.gpu or not launch or not launch["kernels"]:
        why = _NOT_SEEN if seen.gpu else _NO_GPU
        return Answer(questions[0], why), Answer(questions[1], why)
    count = launch["kernels"] / seen.steps
    spent = sum(one["total_ns"] for one in seen.trace["kernels"])
    mean = spent / launch["kernels"] / 1e3
    short = launch["shorter_than_5us"]
    few = "" if short is None else f"; {short:.0%} are shorter than 5 µs"
    return (
        Answer(questions[0], f"{count:,.0f}", count, "kernels"),
        Answer(questions[1], f"{mean:,.1f} µs{few}", mean, "µs"),
    )


def _launches(seen: _StepShares) -> Answer:
    question = "Is launch overhead visible?"
    launch = seen.trace.get("launch")
    if not seen.gpu or not launch or seen.busy is None:
        return Answer(question, _NOT_SEEN if seen.gpu else _NO_GPU)
    shares = {cause: share for share, cause in seen.idle_causes()}
    lost = shares.get("host", 0.0) * (1 - seen.busy)
    short = launch["shorter_than_launch"]
    kernels = "" if short is None else f"; {short:.0%} of kernels are shorter than their launch"
    word = "yes" if lost >= _NOTICEABLE else "no"
    words = f"{word}: the GPU waits {lost:.0%} of a step for launches{kernels}"
    return Answer(question, words, 100 * lost, "%")


def _processor(seen: _StepShares) -> Answer:
    question = "Is the CPU the limit?"
    if not seen.gpu:
        return Answer(question, f"yes: {_NO_GPU.partition(': ')[2]}", 100.0, "%")
    if seen.busy is None:
        return Answer(question, _NOT_SEEN)
    shares = {cause: share for share, cause in seen.idle_causes()}
    lost = (shares.get("host", 0.0) + shares.get("loader", 0.0)) * (1 - seen.busy)
    if seen.busy >= _BUSY:
        return Answer(question, f"no: the GPU works {seen.busy:.0%} of a step", 100 * lost, "%")
    if not shares:
        words = f"probably: the GPU works only {seen.busy:.0%} of a step"
        return Answer(question, words)
    word = "yes" if lost >= 0.5 else "in part" if lost >= _NOTICEABLE else "no"
    words = f"{word}: the GPU waits {lost:.0%} of a step for the host or its data"
    return Answer(question, words, 100 * lost, "%")


def _bottlenecks(findings: Sequence[Finding]) -> Answer:
    titles = [one.title for one in findings[:_BOTTLENECKS]]
    words = "; ".join(titles) if titles else "none above 2% of a step was found"
    return Answer("What are the three main bottlenecks?", words, float(len(titles)), "findings")


def _potential(headroom: Headroom | None) -> Answer:
    question = "How much faster could a step be?"
    if headroom is None:
        return Answer(question, "nothing was found that a step would gain by", 1.0, "×")
    return Answer(question, headroom.text, headroom.speedup, "×")
