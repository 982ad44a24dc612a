"""Steps of a workload in the steady state, recorded by torch.profiler or marked for ncu.

python -m stepscope.workloads.one_step --model resnet50 --record trace.json     with shapes
ncu --profile-from-start off … python -m stepscope.workloads.one_step --model resnet50
"""

import argparse
import sys
import time
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any, Final

import torch

from stepscope.record.errors import StepscopeError, UsageError
from stepscope.workloads.arguments import ProgramArguments, parse_arguments
from stepscope.workloads.measure.clock import UntimedClock
from stepscope.workloads.measure.inputs import ResidentBatches, build_for_mode, make_program_task
from stepscope.workloads.measure.program import prepare_device
from stepscope.workloads.train import make_optimizer

_LEAST, _MOST, _ENOUGH_S = 4, 12, 3.0
_FIRST: Final = 2  # calls that compile, choose algorithms and allocate memory


def main() -> int:
    """Warm up, then record or mark; bad input is one line and exit code 2."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--mode", choices=("train", "infer"), default="train")
    parser.add_argument("--record", type=Path, metavar="FILE")
    mine, rest = parser.parse_known_args()
    try:
        asked = parse_arguments(mine.mode, __doc__, [*rest, "--data", "resident"])
        if mine.record is None and asked.device != "cuda":
            raise UsageError("only --device cuda can be marked for ncu: give --record FILE")
        device = prepare_device(asked)
        step, wait = step_of(mine.mode, asked, device), UntimedClock(device).wait
    except StepscopeError as problem:
        print(problem, file=sys.stderr)
        return problem.exit_code
    warm_up(step, wait)
    observe(step, wait, mine.record, asked.steps or 1)
    return 0


def step_of(mode: str, asked: ProgramArguments, device: Any) -> Callable[[], Any]:
    """One training step or one call, on samples already on the device. Raises UsageError."""
    built = build_for_mode(mode, asked)
    batch = asked.batch or built.workload.batch
    task = make_program_task(built, asked, batch)
    batches = cycle(ResidentBatches(task.train, batch, device))
    model = built.model.to(device)
    if mode == "infer":
        model.eval()

        def call() -> None:
            inputs, _ = next(batches)
            with torch.inference_mode():
                model(inputs)

        return call
    optimizer = make_optimizer(built.workload.optimizer, model, asked.lr or built.workload.lr)

    def step() -> None:
        inputs, targets = next(batches)
        loss = task.loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def warm_up(step: Callable[[], Any], wait: Callable[[], None]) -> None:
    """Run steps until they are steady; fewer of long ones."""
    settled_s = 0.0
    for number in range(_MOST):
        if number == _FIRST:
            wait()
            settled_s = time.monotonic()
        if number >= _LEAST and time.monotonic() - settled_s > _ENOUGH_S:
            break
        step()
    wait()


def observe(
    step: Callable[[], Any], wait: Callable[[], None], record: Path | None, steps: int
) -> None:
    """Record some steps with their shapes, or mark one between profiler.start and stop for ncu."""
    if record is None:
        torch.cuda.profiler.start()
        step()
        wait()
        torch.cuda.profiler.stop()
        return
    with torch.profiler.profile(record_shapes=True) as profile:
        for _ in range(steps):
            step()
        wait()
    profile.export_chrome_trace(str(record))


if __name__ == "__main__":
    sys.exit(main())
