"""The questions of a baseline analysis, answered outright."""

from collections.abc import Mapping, Sequence

from stepscope.diagnose.case import Case, in_ms
from stepscope.diagnose.rules.facts import busy_share, cpu_percent, idle_share
from stepscope.record.finding import Answer, AnswerStatus, Finding, Headroom
from stepscope.record.kinds import IdleCause

_CAUSES: Mapping[str, str] = {
    IdleCause.LOADER: "data loader",
    IdleCause.HOST: "slow launches",
    IdleCause.SYNCHRONISATION: "synchronisation",
    IdleCause.COPY: "copies",
    IdleCause.OTHER_RANKS: "other ranks",
    IdleCause.BETWEEN_KERNELS: "gaps between kernels",
    IdleCause.UNKNOWN: "not recorded",
}
_NOTICEABLE = 0.05
_BUSY = 0.9  # a device this busy sets the pace
_BOTTLENECKS = 3


def answer_questions(
    case: Case, findings: Sequence[Finding], headroom: Headroom | None
) -> list[Answer]:
    """Answers to all questions, always in the same order."""
    seen = _StepShares(case)
    titles = [one.title for one in findings[:_BOTTLENECKS]]
    largest = "; ".join(titles) if titles else "none above 2% of a step"
    potential = ("no known fix shortens the step", 1.0)
    if headroom is not None:
        potential = (headroom.text, headroom.speedup)
    return [
        _utilisation(seen),
        _gaps(seen),
        _copies(seen),
        _waiting(seen),
        *_kernels(seen),
        _launches(seen),
        _processor(seen),
        Answer("What are the main bottlenecks?", largest, float(len(titles)), "findings"),
        Answer("How much faster could a step be?", *potential, "×"),
    ]


class _StepShares:
    """What the documents say about a step, as shares of it."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.gpu = case.device == "cuda"
        self.trace = case.trace if self.gpu else None
        self.steps = self.trace.steps.count if self.trace else 0
        self.busy = busy_share(case)
        idle = {cause: ns for cause, ns in self.trace.idle_ns.items() if ns} if self.trace else {}
        ordered = sorted(idle.items(), key=lambda item: (-item[1], item[0]))
        # Parts of the idle time in the window, the largest first.
        self.idle_causes = {cause: ns / sum(idle.values()) for cause, ns in ordered}

    def unknown(self, question: str) -> Answer:
        """The answer without a GPU, or without a recording of it."""
        if not self.gpu:
            return Answer(question, "no GPU used", status=AnswerStatus.NO_GPU)
        text = "unknown: no kernels recorded"
        return Answer(question, text, status=AnswerStatus.NOT_RECORDED)


def _utilisation(seen: _StepShares) -> Answer:
    question = "How busy is the GPU?"
    if not seen.gpu:
        percent = cpu_percent(seen.case)
        used = "" if percent is None else f"; program and workers use {percent / 100:.1f} cores"
        return Answer(question, f"no GPU used{used}", status=AnswerStatus.NO_GPU)
    if seen.busy is None:
        return seen.unknown(question)
    return Answer(question, f"busy {seen.busy:.0%} of the step", 100 * seen.busy, "%")


def _gaps(seen: _StepShares) -> Answer:
    question = "Does the GPU idle, and why?"
    if not seen.gpu or seen.busy is None:
        return seen.unknown(question)
    idle = 1 - seen.busy
    if idle < _NOTICEABLE:
        return Answer(question, f"no: idle {idle:.0%} of the step", 100 * idle, "%")
    causes = [
        f"{_CAUSES.get(cause, cause)} {share:.0%}"
        for cause, share in seen.idle_causes.items()
        if share >= _NOTICEABLE
    ]
    of_it = f"; of that {', '.join(causes[:3])}" if causes else ""
    return Answer(question, f"yes: idle {idle:.0%} of the step{of_it}", 100 * idle, "%")


def _copies(seen: _StepShares) -> Answer:
    question = "How long do copies to the GPU take, and do they overlap compute?"
    if not seen.gpu:
        return seen.unknown(question)
    copies = [one for one in (seen.trace.copies if seen.trace else ()) if one.direction == "HtoD"]
    if seen.trace and not copies:
        return Answer(question, "no copies", 0.0, "ms")
    total = sum(one.total_ns for one in copies)
    if not total:
        host = seen.case.phases.get("h2d")
        if host is None:
            return seen.unknown(question)
        return Answer(question, f"{in_ms(host)} ms per step; overlap not recorded", host, "ms")
    ms = total / seen.steps / 1e6
    hidden = sum(one.total_ns * one.overlapped for one in copies) / total
    memory = " and ".join(sorted({str(one.memory) for one in copies}))
    words = f"{in_ms(ms)} ms per step from {memory} memory; {hidden:.0%} overlaps compute"
    return Answer(question, words, ms, "ms")


def _waiting(seen: _StepShares) -> Answer:
    question = "How much of a step waits for data?"
    case = seen.case
    share = case.phases.get("data_wait", 0.0) / case.step_ms if case.phases else None
    if not case.phases and seen.trace:
        share = idle_share(case, IdleCause.LOADER)
    if share is None:
        status = AnswerStatus.NOT_RECORDED
        return Answer(question, "unknown: not in this recording", status=status)
    return Answer(question, f"{share:.0%}, {in_ms(share * case.step_ms)} ms", 100 * share, "%")


def _kernels(seen: _StepShares) -> tuple[Answer, Answer]:
    questions = ("How many kernels does a step run?", "How long is a kernel on average?")
    launch = seen.trace.launch if seen.trace else None
    if not seen.trace or not launch or not launch.kernels:
        return seen.unknown(questions[0]), seen.unknown(questions[1])
    count = launch.kernels / seen.steps
    mean = sum(one.total_ns for one in seen.trace.kernels) / launch.kernels / 1e3
    short = launch.shorter_than_5us
    few = "" if short is None else f"; {short:.0%} are shorter than 5 µs"
    return (
        Answer(questions[0], f"{count:,.0f}", count, "kernels"),
        Answer(questions[1], f"{mean:,.1f} µs{few}", mean, "µs"),
    )


def _launches(seen: _StepShares) -> Answer:
    question = "Is launch overhead visible?"
    launch = seen.trace.launch if seen.trace else None
    if not launch or seen.busy is None:
        return seen.unknown(question)
    lost = seen.idle_causes.get(IdleCause.HOST, 0.0) * (1 - seen.busy)
    short = launch.shorter_than_launch
    kernels = "" if short is None else f"; {short:.0%} of kernels are shorter than their launch"
    word = "yes" if lost >= _NOTICEABLE else "no"
    words = f"{word}: the GPU waits {lost:.0%} of the step for launches{kernels}"
    return Answer(question, words, 100 * lost, "%")


def _processor(seen: _StepShares) -> Answer:
    question = "Is the CPU the limit?"
    if not seen.gpu:
        return Answer(question, "yes: the program computes on the CPU", 100.0, "%")
    if seen.busy is None:
        return seen.unknown(question)
    shares = seen.idle_causes
    lost = (shares.get(IdleCause.HOST, 0.0) + shares.get(IdleCause.LOADER, 0.0)) * (1 - seen.busy)
    if seen.busy >= _BUSY:
        return Answer(question, f"no: the GPU is busy {seen.busy:.0%} of the step", 100 * lost, "%")
    if not shares:
        return Answer(question, f"probably: the GPU is busy only {seen.busy:.0%} of the step")
    word = "yes" if lost >= 0.5 else "partly" if lost >= _NOTICEABLE else "no"
    words = f"{word}: the GPU waits {lost:.0%} of the step for the host or data"
    return Answer(question, words, 100 * lost, "%")
