"""Run a workload forward: calls back to back for throughput, then single ones for latency.

python -m stepscope.workloads.infer --model resnet50 --batch 32
python -m stepscope.workloads.infer --model vit_small --device cuda --measure result.json
"""

import sys
from time import perf_counter
from typing import Any

import torch
from torch.utils.data import DataLoader

from stepscope.workloads.arguments import ProgramArguments
from stepscope.workloads.measure.arithmetic import fastest_arithmetic
from stepscope.workloads.measure.clock import UntimedClock, clock_for
from stepscope.workloads.measure.inputs import (
    MovedBatches,
    ResidentBatches,
    build_for_mode,
    describe_workload,
    make_program_task,
    takes_several_tensors,
)
from stepscope.workloads.measure.loader import repeat_forever
from stepscope.workloads.measure.meter import Meter, WarmupRule, section_limits
from stepscope.workloads.measure.program import peak_memory, run_program
from stepscope.workloads.measure.record import InferMeasured

_LEAST = 10


def infer(asked: ProgramArguments, measured: InferMeasured, device: torch.device) -> None:
    built = build_for_mode("infer", asked)
    batch = asked.batch or built.workload.batch
    if asked.data == "resident" and asked.samples is None:
        asked.samples = batch
    samples = make_program_task(built, asked, batch).train
    describe_workload(built, asked, batch, measured, device)
    model = built.model.to(device).eval()

    on_device = asked.data == "resident" or takes_several_tensors(built)
    if asked.data == "resident":
        batches: Any = ResidentBatches(samples, batch, device)
    else:
        batches = DataLoader(samples, batch_size=batch, drop_last=True, num_workers=asked.workers)
        if takes_several_tensors(built):
            batches = MovedBatches(batches, device)
    limits = section_limits(asked, _LEAST)
    clock = clock_for(device) if asked.measure is not None else UntimedClock(device)
    meter = Meter(clock, limits, WarmupRule() if asked.measure is not None else None)

    meter.begin()
    while meter.going:
        for inputs, targets in batches:
            if not on_device:
                inputs = inputs.to(device)
            with torch.inference_mode():
                model(inputs)
            if not meter.call(len(targets)):
                break
    meter.end()
    print(f"{meter.samples / meter.section_s:,.1f} samples/s", flush=True)
    if asked.measure is None:
        return
    meter.fill(measured)
    measured.throughput_ms = measured.series_ms
    measured.peak_memory_bytes, measured.reserved_memory_bytes = peak_memory(device)
    measured.batch = len(targets)  # a fix may form other batches than requested

    clock, begun = clock_for(device), perf_counter()
    for calls, (inputs, _) in enumerate(repeat_forever(batches), start=1):
        clock.begin()
        if not on_device:
            inputs = inputs.to(device)
        with torch.inference_mode():
            model(inputs)
        clock.mark()
        clock.wait()
        if limits.reached(calls, perf_counter() - begun):
            break
    measured.series_ms = [1e3 * seconds for seconds in clock.take()]
    measured.arithmetic = fastest_arithmetic(model, device, inputs)


if __name__ == "__main__":
    sys.exit(run_program("infer", __doc__, infer))
