"""From rows to steps: which rows make a step, how long it took, and which phases it was spent in.

A host that only launches ends its steps early; what the device then still has to do grows from
step to step and shows where the host waits for it, at the latest after the last one. Waits are
charged to the phase that was waited for.

Where clocking every step would have cost too much, most have an end, a wait for data and a loss
alone. What they waited for is known; the rest of their time is divided as in the steps that were
clocked by chance. The others, clocked for a reason, stand for themselves, and so does each clocked
step that took unusually long: a rare delay is not multiplied.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.probe.step_rule import step_ends
from stepscope.record.row_log import (
    FLAG_OCCASION,
    FLAG_PROFILED,
    FLAG_SAMPLED,
    FLAG_UNCLOCKED,
    STEP_PHASES,
    RowKind,
)
from stepscope.stats.series import Bools, Floats

_RECORDED = FLAG_PROFILED | FLAG_SAMPLED
_BELIEVED = 0.5  # of how far the device was behind at the end, by its own times
_LEAST_LEAD = 2.0  # usual steps: a host that was never further ahead shows the device's pace itself


def _host_lead(duration: Floats, device: Floats, waited: Bools, behind: float) -> Floats:
    """How far the host was ahead after each step, in nanoseconds.

    `device` are the device's own times of the steps, NaN where not taken; in steps that have
    `waited` the host waited for the device elsewhere; `behind` is what the device still had to do
    after the last step. Without times that fit this, the host is taken to have run ahead evenly.
    """
    evenly = np.linspace(0.0, behind, len(duration) + 1)[1:]
    known = device[~np.isnan(device)]
    if not known.size:
        return evenly
    # The sum of what the device took longer, never below zero.
    change = np.where(np.isnan(device), np.median(known), device) - duration
    change[waited] = -float(np.abs(change).sum())
    sums: Any = np.cumsum(change)
    lead: Floats = sums - np.minimum(np.minimum.accumulate(sums), 0.0)
    off, furthest = behind - float(lead[-1]), float(lead.max())
    if furthest < _LEAST_LEAD * float(np.median(duration)):
        return evenly
    if abs(off) > _BELIEVED * max(behind, furthest):
        return evenly
    # Made to end where the device was seen to be, from where the two last met on.
    met = np.flatnonzero(lead == 0.0)
    since = int(met[-1]) + 1 if met.size else 0
    lead[since:] += np.linspace(0.0, off, len(lead) - since + 1)[1:]
    return lead


_UNUSUAL = 3.0  # times the median step
_DOUBTED = 8  # unusual steps that were clocked: as many are worth as much as all usual ones
Rows = npt.NDArray[Any]  # structured: the columns of a table

HOST_PHASES = ("data_wait", "h2d", "forward", "backward", "optimizer", "wait", "other")
DEVICE_PHASES = ("h2d", "forward", "backward", "optimizer", "other")
_CARVED = {"compile": "compile", "observer": "window", "save": "checkpoint"}


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps in order; arrays have one entry a step, times in nanoseconds."""

    duration: Floats
    end: Floats
    host: dict[str, Floats]  # NaN, but for waits for data, where not clocked
    device: dict[str, Floats]  # NaN where not measured
    samples: Floats
    loss: Floats  # NaN where nothing scalar was backpropagated
    in_window: Bools  # recorded at kernel level, or their host code sampled
    clocked: Bools  # its phases are known
    sampled: Bools  # it was clocked by chance, and stands for those that were not
    inferred: bool
    what: str  # "training", "inference" or "batches"
    account: dict[str, float]  # nanoseconds outside steps, by category
    by_optimizer: dict[int, int]  # optimizer steps, whether or not they end a step
    behind: float = 0.0  # what the device still took when the host had ended the last step
    evaluations: int = 0  # how often evaluating began
    epoch_start: Floats = field(default_factory=lambda: np.zeros(0))
    """What lay between a step and the one before where an epoch began; no part of `duration`."""
    compiling: Floats = field(default_factory=lambda: np.zeros(0))
    """What torch.compile took in each step; no part of `duration`."""
    waited: Bools | None = None
    """Recorded at kernel level: the host waited for the device. None: all of `in_window`."""

    def __len__(self) -> int:
        return len(self.duration)

    def mean(self, use: Bools) -> float:
        """How long one of these steps took: wall time over steps, until the device was done."""
        return (float(self.duration[use].sum()) + self.fell_behind(use)) / int(use.sum())

    def host_means(self, use: Bools) -> dict[str, float]:
        """How long each phase took the host in one of these steps: what all of them took, over
        their number."""
        count = int(use.sum())
        sums = {name: float(self.host[name][use & self.clocked].sum()) for name in HOST_PHASES}
        left = use & ~self.clocked
        if left.any():
            sums["data_wait"] += float(self.host["data_wait"][left].sum())
            for name, guessed in self._divided(use, left).items():
                sums[name] += guessed
        return {name: total / count for name, total in sums.items()}

    def _divided(self, use: Bools, left: Bools) -> dict[str, float]:
        """The time of steps that were not clocked, waits for data left out, by phase: as in the
        clocked ones that stand for them. Steps that took unusually long are divided as sampled ones
        of that kind, the more so the more of these there are: a few say little of all."""
        beside = self.duration - self.host["data_wait"]
        if not self.clocked.any():
            return {"other": float(beside[left].sum())}
        sampled = next(
            like for like in (use & self.sampled, use & self.clocked, self.clocked) if like.any()
        )
        usual = beside <= _UNUSUAL * float(np.median(beside[use]))
        times = [float(beside[left & kind].sum()) for kind in (usual, ~usual)]
        shares = self._shares(sampled & usual, beside)
        unusual = self._shares(sampled & ~usual, beside)
        seen = int((sampled & ~usual).sum())
        trust = seen / (seen + _DOUBTED)
        return {
            name: times[0] * share + times[1] * (trust * unusual[name] + (1 - trust) * share)
            for name, share in shares.items()
        }

    def _shares(self, steps: Bools, beside: Floats) -> dict[str, float]:
        """Of the time beside waits for data, by phase; they add up to 1."""
        names = [name for name in HOST_PHASES if name != "data_wait"]
        whole = float(beside[steps].sum())
        if whole <= 0:
            return {name: float(name == "other") for name in names}
        return {name: float(self.host[name][steps].sum()) / whole for name in names}

    @property
    def weight(self) -> float:
        """How many steps a sampled one stands for, itself included."""
        sampled = int(self.sampled.sum())
        return 1.0 + int((~self.clocked).sum()) / sampled if sampled else 1.0

    def fell_behind(self, use: Bools) -> float:
        """By how much more the device was behind the host after these steps than before them."""
        return max(0.0, float((self.done() - self.duration)[use].sum()))

    def done(self) -> Floats:
        """How long each step took until the device had finished it too; recorded ones as the host
        saw them, since it waits for the device around the window."""
        if not len(self):
            return self.duration
        device: Floats = np.sum([*self.device.values()], axis=0)
        waited = self.in_window if self.waited is None else self.waited
        ahead = _host_lead(self.duration, device, waited, self.behind)
        done = np.maximum(self.duration + np.diff(ahead, prepend=0.0), 0.0)
        return np.where(waited, self.duration, done)


def assemble_steps(rows: Rows, start_ns: float) -> Steps:
    """Put steps together. `start_ns` is when the program was launched."""
    rows = rows[rows["end_ns"] > 0] if rows.size else rows
    if not rows.size:
        return _no_steps()
    ends, what, inferred = _ends(rows)
    duration = np.diff(rows["end_ns"], prepend=start_ns)
    if not ends.any():
        return _no_steps({"setup": float(duration.sum())})
    return _group_rows(rows, duration, ends, what, inferred)


def _ends(rows: Rows) -> tuple[Bools, str, bool]:
    """Which rows end a step, what kind of steps they are, and whether that is inferred."""
    kind = rows["kind"].astype(int)
    marked = kind == RowKind.MARK
    if marked.any():
        return marked, "training" if (rows["backwards"] > 0).any() else "inference", False
    stepped = kind == RowKind.STEP
    if stepped.any():
        ends = np.zeros(len(rows), bool)
        ends[stepped] = step_ends([int(who) for who in rows["who"][stepped]])
        return ends, "training", False
    backward = kind == RowKind.BACKWARD
    if backward.any():
        return backward, "training", True
    graded = kind == RowKind.GRAD
    if graded.any():
        return graded, "training", True
    called = np.isin(kind, (RowKind.CALL, RowKind.EVAL, RowKind.ACT))
    if called.any():
        roots, counts = np.unique(rows["who"][called], return_counts=True)
        return called & (rows["who"] == roots[counts.argmax()]), "inference", True
    return kind == RowKind.BATCH, "batches", True


class _Ledger:
    """What is left of each row's time as parts of it are booked outside steps."""

    def __init__(self, duration: Floats) -> None:
        self.left = duration.copy()
        self.account: dict[str, float] = {}

    def book(self, category: str, amounts: Floats) -> Floats:
        """Move `amounts` from the rows to a category of the whole run; what was there of them."""
        amounts = np.minimum(amounts, self.left)
        self.account[category] = self.account.get(category, 0.0) + float(amounts.sum())
        self.left -= amounts
        return amounts


def _group_rows(rows: Rows, duration: Floats, ends: Bools, what: str, inferred: bool) -> Steps:
    count = int(ends.sum())
    step_of: Any = np.cumsum(ends) - ends  # the step a row belongs to; `count` after the last
    inside: Bools = step_of < count
    host = {name: rows[f"{name}_ns"].astype(float) for name in HOST_PHASES}
    flags = rows["flags"].astype(int)
    unclocked = (flags & FLAG_UNCLOCKED) > 0
    ledger = _Ledger(duration)
    carved = {p: ledger.book(category, rows[f"{p}_ns"]) for p, category in _CARVED.items()}

    kind = rows["kind"].astype(int)
    # What a model does without gradients after the last step, no step learns from.
    evaluation = (kind == RowKind.EVAL) | ((kind == RowKind.ACT) & ~inside)
    epoch, evaluation = kind == RowKind.EPOCH, evaluation & (what == "training")
    if _in_most_steps(epoch & inside, step_of, count):
        epoch = np.zeros_like(epoch)
        host["data_wait"] += rows["epoch_start_ns"]
        starting = np.zeros(len(rows))
    else:
        starting = ledger.book("epoch_start", rows["epoch_start_ns"])
    clocked = ~_steps_with(unclocked & inside, step_of, count)
    seen = clocked | _steps_with(evaluation & inside, step_of, count)
    if _in_most_steps(evaluation & inside, step_of, int(seen.sum())):
        evaluation = np.zeros_like(evaluation)
    _book_setup(ledger, host)
    evaluation |= epoch & np.append(evaluation[1:], False)  # a validation loader's iterator
    turns = evaluation & ~np.append(False, evaluation[:-1])
    ledger.book("evaluation", np.where(evaluation, ledger.left, 0.0))
    after = np.append(False, evaluation[:-1]) & ~evaluation  # such a row's beginning still is
    ledger.book("evaluation", np.where(after, rows["lead_ns"], 0.0))
    starting[evaluation] = 0.0
    starting += ledger.book("epoch_start", np.where(epoch & ~evaluation, ledger.left, 0.0))
    computes = (rows["forwards"] > 0) | (rows["backwards"] > 0) | (rows["batches"] > 0)
    idle = ~computes
    ledger.book("checkpoint", np.where((kind == RowKind.SAVE) & idle, ledger.left, 0.0))
    follows = (kind == RowKind.END) & np.append(False, ends[:-1])
    behind = np.where(follows & idle, np.minimum(rows["wait_ns"], ledger.left), 0.0)
    ledger.left -= behind
    ledger.book("shutdown", np.where(inside, 0.0, ledger.left))

    def total(values: Floats) -> Floats:
        return np.bincount(step_of[inside], values[inside], minlength=count).astype(float)

    steppers = rows["who"][kind == RowKind.STEP].astype(int)
    kept = ledger.left > 0
    length = total(ledger.left)
    per_step = {name: total(np.where(kept, values, 0.0)) for name, values in host.items()}
    named = np.nansum([values for name, values in per_step.items() if name != "other"], axis=0)
    per_step["other"] = np.maximum(length - named, 0.0)
    for name in HOST_PHASES:
        if name != "data_wait":
            per_step[name][~clocked] = np.nan
    return Steps(
        duration=np.maximum(length, named),
        end=rows["end_ns"][ends].astype(float),
        host=per_step,
        device={p: total(np.where(kept, rows[f"device_{p}_ns"], 0.0)) for p in DEVICE_PHASES},
        samples=_samples(rows, step_of, inside & ~evaluation, count),
        loss=_losses(rows, step_of, inside, count),
        in_window=_steps_with((flags & _RECORDED > 0) & inside, step_of, count),
        waited=_steps_with((flags & FLAG_PROFILED > 0) & inside, step_of, count),
        inferred=inferred,
        what=what,
        account=ledger.account,
        by_optimizer=dict(sorted(Counter(steppers.tolist()).items())),
        behind=float(behind.sum()),
        evaluations=int(turns.sum()),
        epoch_start=total(starting),
        compiling=total(carved["compile"]),
        clocked=clocked,
        sampled=clocked & ~_steps_with((flags & FLAG_OCCASION > 0) & inside, step_of, count),
    )


def _steps_with(mask: Bools, step_of: Any, count: int) -> Bools:
    """The steps that have such a row."""
    found = np.zeros(count, bool)
    found[step_of[mask]] = True
    return found


def _book_setup(ledger: _Ledger, host: dict[str, Floats]) -> None:
    """The first row holds the program's own start; only what computes there belongs to a step."""
    computing = sum(host[name][0] for name in ("data_wait", "forward", "backward", "optimizer"))
    setup = np.zeros_like(ledger.left)
    setup[0] = max(0.0, ledger.left[0] - computing)
    ledger.book("setup", setup)
    for name in ("h2d", "wait", "other"):
        host[name][0] = 0.0


def _in_most_steps(mask: Bools, step_of: Any, count: int) -> bool:
    """Whether what `mask` marks happens in more than half of the steps: then it is part of them."""
    return count > 2 and len(np.unique(step_of[mask])) > count / 2


def _samples(rows: Rows, step_of: Any, use: Bools, count: int) -> Floats:
    """Samples per step: as loaders delivered them, else as the root models received them."""
    delivered = np.bincount(step_of[use], rows["samples"][use], minlength=count)
    if delivered.any():
        return delivered.astype(float)
    inputs, received = rows["inputs"].astype(float), np.zeros(count)
    unknown = _steps_with(use & np.isnan(inputs), step_of, count)
    np.maximum.at(received, step_of[use], np.nan_to_num(inputs[use]))
    if unknown.any() and not unknown.all():
        received[unknown] = float(received[~unknown].mean())
    return received


def _losses(rows: Rows, step_of: Any, inside: Bools, count: int) -> Floats:
    """The mean of what was backpropagated in each step."""
    known = inside & ~np.isnan(rows["loss"])
    step, loss = step_of[known], rows["loss"][known].astype(float)
    weight = np.maximum(rows["backwards"][known], 1)
    sums = np.bincount(step, loss * weight, minlength=count)
    weights = np.bincount(step, weight, minlength=count)
    losses = np.full(count, np.nan)
    np.divide(sums, weights, out=losses, where=weights > 0)
    single = np.bincount(step, minlength=count) == 1
    losses[step[single[step]]] = loss[single[step]]
    return losses


def _no_steps(account: dict[str, float] | None = None) -> Steps:
    empty = np.zeros(0)
    return Steps(
        duration=empty,
        end=empty,
        host=dict.fromkeys(HOST_PHASES, empty),
        device=dict.fromkeys(DEVICE_PHASES, empty),
        samples=empty,
        loss=empty,
        in_window=np.zeros(0, bool),
        inferred=False,
        what="nothing",
        clocked=np.zeros(0, bool),
        sampled=np.zeros(0, bool),
        account=account or {},
        by_optimizer={},
    )


_COMPUTED = ("h2d", "forward", "backward", "optimizer")


def mean_host_phases(steps: Steps, use: Bools) -> dict[str, float]:
    """Mean host time per phase in ms, waits for the device apart."""
    means = {name: mean / 1e6 for name, mean in steps.host_means(use).items()}
    means["wait"] += steps.fell_behind(use) / int(use.sum()) / 1e6
    return means


def mean_device_phases(steps: Steps, use: Bools) -> dict[str, float] | None:
    """Mean device time per phase in ms over the steps that were timed; None when none was."""
    timed = use & ~np.isnan(sum(steps.device[name] for name in DEVICE_PHASES))
    if not timed.any():
        return None
    return {name: float(steps.device[name][timed].mean()) / 1e6 for name in DEVICE_PHASES}


def phases_by_device(device: dict[str, float], mean_ms: float) -> dict[str, float]:
    """Phases as the device saw them, scaled to the mean step: for steps the device decides.

    There the host runs ahead and blocks wherever the queue happens to be full, which says nothing.
    """
    total = sum(device.values())
    scaled = {name: value * mean_ms / total for name, value in device.items()}
    return dict.fromkeys(STEP_PHASES, 0.0) | scaled


def charge_waits(host: dict[str, float], device: dict[str, float] | None) -> dict[str, float]:
    """Phases that add up to the step: the host's, with its waits given to the phases whose work
    on the device went on meanwhile, in proportion to how far the device was behind in each.

    A pageable copy waits for all work before it: what its device time does not explain is a wait.
    """
    phases, waits = {name: host[name] for name in STEP_PHASES}, host["wait"]
    if device is not None:
        surplus = max(0.0, phases["h2d"] - device["h2d"])
        phases["h2d"] -= surplus
        waits += surplus
        behind = {name: max(0.0, device[name] - phases[name]) for name in _COMPUTED}
        total = sum(behind.values())
        given = min(waits, total)
        for name, share in behind.items():
            phases[name] += given * share / total if total else 0.0
        waits -= given
    phases["other"] += waits
    return phases
