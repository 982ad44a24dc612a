"""What sets of fixes should gain together, by replaying the window of the scout run; and what the
fixes of a run brought, against a run without them."""

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from stepscope.analyze.run.document import FixEffect, RunSummary, SpeedupRange, from_json
from stepscope.analyze.run.records import RunRecords
from stepscope.analyze.run.summary import summarize
from stepscope.diagnose.case import Case, case_of_run, speedup_range
from stepscope.diagnose.findings import with_findings
from stepscope.fixes.registry import fix_named
from stepscope.hardware.machine import Machine, describe_machine, package_version
from stepscope.hardware.noise_floors import machine_key
from stepscope.launch.program import Program
from stepscope.measure.speed import FEWEST_STEADY, read_loader_timing, spread_start_ms, steady_speed
from stepscope.record.errors import StepscopeError
from stepscope.record.facts import AutoFact
from stepscope.record.finding import Scope
from stepscope.record.fix import FixState
from stepscope.record.privacy import masked_arguments
from stepscope.record.run import RunRecord
from stepscope.stats.verdict import compare_processes, verdict_for_interval
from stepscope.store.folder import RUN_FILE, read_run
from stepscope.store.json_lines import read_facts

Fixes = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Prediction:
    """A speedup and the range it lies in."""

    speedup: float
    low: float
    high: float


Predictor = Callable[[Fixes, Fixes], Prediction | None]
"""What the second set gains over the first; None if unknown."""


def no_prediction(base: Fixes, other: Fixes) -> Prediction | None:
    """A predictor that predicts nothing."""
    return None


def window_predictor(run: RunSummary, folder: Path) -> Predictor:
    """A predictor from a run with findings and its folder. A finding's prediction serves where no
    replay can. Of several fixes tried as one, those with nothing to change in the window count as
    no change."""
    case = case_of_run(run, RunRecords(folder))
    told = predicted_by_findings(run)
    memory: dict[Fixes, float | None] = {}

    def seen(base: Fixes, other: Fixes) -> Prediction | None:
        new = tuple(one for one in other if one not in base)
        gone = tuple(one for one in base if one not in other)
        if case is not None and _can_tell(case, new, gone):
            before, after = (_replayed(case, fixes, memory) for fixes in (base, other))
            if before and after:
                error = case.model.error if case.model is not None else 0.0
                return Prediction(before / after, *speedup_range(before / after, error=error))
        known = [told[one] for one in new if one in told]
        return known[0] if len(known) == len(new) == 1 and not gone else None

    return seen


def predicted_by_findings(run: RunSummary) -> dict[str, Prediction]:
    """What findings predict for their own fix, as `--fix` takes it; the larger of two."""
    found: dict[str, Prediction] = {}
    for finding in (*run.findings, *run.minor):
        fix, predicted = finding.fix, finding.predicted
        if fix is None or predicted is None or finding.scope is Scope.RUN:
            continue
        one = Prediction(predicted.speedup, predicted.low, predicted.high)
        if str(fix) not in found or one.speedup > found[str(fix)].speedup:
            found[str(fix)] = one
    return found


def _can_tell(case: Case, new: Fixes, gone: Fixes) -> bool:
    """Whether the window shows the effect of this change."""
    acting = [one for one in (*new, *gone) if fix_named(one.partition("=")[0]).acts_in_step]
    unseen = [one for one in acting if _changes(case, one) is None]
    return len(acting) > len(unseen) and (not unseen or (len(new) > 1 and set(unseen) <= set(new)))


def _replayed(case: Case, fixes: Fixes, memory: dict[Fixes, float | None]) -> float | None:
    """Step time in ms with these fixes; fixes with unknown effect change nothing."""
    if fixes not in memory:
        model = case.model
        changes = [change for one in fixes for change in _changes(case, one) or ()]
        try:
            memory[fixes] = None if model is None else float(model.replay(*changes).step_ms)
        except Exception:  # the window cannot be replayed with this: trials decide
            memory[fixes] = None
    return memory[fixes]


def _changes(case: Case, fix: str) -> list[Any] | None:
    name, _, value = fix.partition("=")
    return fix_named(name).predict(value or None, case) if case.model is not None else None


_NEWEST: Final = 40  # runs beside it whose run.json is looked at
_SAME_SAMPLES: Final = 0.01  # of a step, as a share


def with_fix_effect(run: RunSummary, records: RunRecords) -> RunSummary:
    """A run with what its fixes brought; as it is where nothing is there to compare it with."""
    effect = None
    if any(one.state is FixState.APPLIED for one in run.fixes) and run.steps.mean_ms:
        for folder in _comparable(records, run.run.device or "cpu"):
            try:
                base = RunRecords(folder)
                effect = _effect(with_findings(summarize(base), base), base, run, records)
            except StepscopeError:  # a damaged run
                continue
            if effect is not None:
                break
    return msgspec.structs.replace(run, fix_effect=effect)


def _comparable(records: RunRecords, device: str) -> Iterator[Path]:
    """Runs beside it that were begun before it, of the same program with the same arguments on the
    same machine, with fewer fixes; the newest first."""
    own = records.run
    for folder, other in _beside(records.folder):
        try:
            same = _what_ran(other, device) == _what_ran(own, device)
        except msgspec.ValidationError:
            continue
        earlier = (other.run.started or "") <= (own.run.started or "")
        plain = {*other.fixes} < {*own.fixes} and not (other.options and other.options.auto)
        if same and earlier and other.run.exit_code is not None and plain:
            yield folder


def _beside(folder: Path) -> Iterator[tuple[Path, RunRecord]]:
    """Runs in the same folder as one, the newest first."""
    here = folder.resolve()
    beside = ((one / RUN_FILE, one) for one in here.parent.iterdir() if one != here)
    dated = [(file.stat().st_mtime_ns, one) for file, one in beside if file.is_file()]
    for _, other in heapq.nlargest(_NEWEST, dated):
        try:
            yield other, read_run(other)
        except (StepscopeError, msgspec.ValidationError):
            continue


def kept_earlier(folder: Path, program: Program) -> tuple[str, ...]:
    """The fixes that the newest run with `--auto` of a program kept on this machine, of those
    beside a run's folder; none without one."""
    machine = describe_machine()
    device = "cuda" if machine.gpus else "cpu"
    now = (program.name, masked_arguments(program.arguments), package_version("torch"), None)
    key = machine_key(machine, device)
    for other, record in _beside(folder):
        if record.options is None or not record.options.auto:
            continue
        try:
            if _what_ran(record, device) == (*now, key):
                last = read_facts(other / "facts.jsonl").last(AutoFact)
                return tuple(last.kept) if last is not None else ()
        except (StepscopeError, msgspec.ValidationError):
            continue
    return ()


def _what_ran(record: RunRecord, device: str) -> tuple[object, ...]:
    run, machine = record.run, from_json(record.machine or {}, Machine)
    return run.program, run.argv, run.torch, run.here, machine_key(machine, device)


def _effect(
    base: RunSummary, before: RunRecords, run: RunSummary, after: RunRecords
) -> FixEffect | None:
    """None where the other run is of another device, or too short."""
    have = _applied(base)
    new = tuple(fix for fix in _applied(run) if fix not in have)
    series = [_steady(records) for records in (before, after)]
    short = min(map(len, series)) < FEWEST_STEADY
    means = base.steps.mean_ms, run.steps.mean_ms
    if not new or not all(means) or base.run.device != run.run.device or short:
        return None
    # Epochs that begin later take away what their steps gain.
    begun = [spread_start_ms(records.steps) for records in (before, after)]
    old_ms, new_ms = ((mean or 0.0) + start for mean, start in zip(means, begun, strict=True))
    samples, now = base.steps.samples_per_step or 0.0, run.steps.samples_per_step or 0.0
    by_samples = bool(samples and now) and abs(now / samples - 1) > _SAME_SAMPLES
    speedup = old_ms / new_ms * (now / samples if by_samples else 1.0)
    known = [one.share for one in before.run.noise or () if one.device == run.run.device]
    told = compare_processes([series[0]], [series[1]], known[0] if known else None)
    measured = SpeedupRange(
        speedup, speedup * told.low / told.ratio, speedup * told.high / told.ratio
    )
    return FixEffect(
        fixes=[*new],
        against=base.run.id or before.folder.name,
        before_ms=old_ms,
        after_ms=new_ms,
        before_samples_per_s=1e3 * samples / old_ms if samples else None,
        after_samples_per_s=1e3 * now / new_ms if now else None,
        by_samples=by_samples,
        measured=measured,
        verdict=verdict_for_interval(measured.low, measured.high, told.floor),
        predicted=_promised(base, before.folder, new),
    )


def _applied(run: RunSummary) -> list[str]:
    """Fixes that took effect, as `--fix` takes them."""
    found = [one for one in run.fixes if one.state is FixState.APPLIED]
    return [one.name if one.value is None else f"{one.name}={one.value}" for one in found]


def _steady(records: RunRecords) -> tuple[float, ...]:
    steps = records.steps
    return steady_speed(steps, read_loader_timing(records.rows, records.facts, len(steps))).step_ms


def _promised(base: RunSummary, folder: Path, fixes: Fixes) -> SpeedupRange | None:
    """What a run said of these fixes: by its headroom, by a finding, else by a replay."""
    could, found = base.headroom, {one.id: one.fix for one in base.findings}
    together = {str(fix) for name in could.by if (fix := found.get(name))} if could else set()
    if could is not None and together == {*fixes}:
        return SpeedupRange(could.speedup, *speedup_range(could.speedup))
    told = predicted_by_findings(base)
    one = told.get(fixes[0]) if len(fixes) == 1 else None
    one = one or window_predictor(base, folder)((), fixes)
    return None if one is None else SpeedupRange(one.speedup, one.low, one.high)
