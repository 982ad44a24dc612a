"""Train a workload: an ordinary loop, which can measure itself.

python -m stepscope.workloads.train --model resnet18 --epochs 2
python -m stepscope.workloads.train --model unet --device cuda --steps 200 --measure result.json
"""

import sys
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
from stepscope.workloads.measure.meter import Limits, Meter, WarmupRule
from stepscope.workloads.measure.program import peak_memory, run_program
from stepscope.workloads.measure.record import MeasureNote, TrainMeasured
from stepscope.workloads.measure.scores import Losses, Scores

_SECONDS = 2.0
_EPOCHS_TO_TARGET = 100


def train(asked: ProgramArguments, measured: TrainMeasured, device: torch.device) -> None:
    built = build_for_mode("train", asked)
    workload = built.workload
    batch = asked.batch or workload.batch
    task = make_program_task(built, asked, batch)
    describe_workload(built, asked, batch, measured, device)
    model = built.model.to(device).train()

    on_device = asked.data == "resident" or takes_several_tensors(built)
    if asked.data == "resident":
        batches: Any = ResidentBatches(task.train, batch, device)
    else:
        order = torch.Generator().manual_seed(asked.seed)
        batches = DataLoader(
            task.train,
            batch_size=batch,
            shuffle=True,
            drop_last=True,
            num_workers=asked.workers,
            generator=order,
        )
        if takes_several_tensors(built):
            batches = MovedBatches(batches, device)
    # With SGD, the default rate is scaled down for batches smaller than the model's own.
    share = min(1.0, batch / workload.batch) if workload.optimizer == "sgd" else 1.0
    optimizer = make_optimizer(workload.optimizer, model, asked.lr or workload.lr * share)
    losses, scores = Losses(), Scores(task, model, batch, device)
    meter = make_meter(asked, len(batches), device)
    every = asked.score_every or 0  # steps; 0: only at the end, to measure the section in one piece
    if not every and (asked.measure is None or asked.epochs or asked.target_score is not None):
        every = len(batches)

    meter.begin()
    while meter.going:
        for inputs, targets in batches:
            if not on_device:
                inputs, targets = inputs.to(device), targets.to(device)
            loss = task.loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.add(loss.detach())
            if not meter.call(len(targets)):
                break
            if every and meter.all_calls % every == 0:
                with meter.paused():
                    scores.take(meter, losses)
                    meter.going = not scores.reached(asked.target_score)
                if not meter.going:
                    break
    meter.end()
    meter.fill(measured)
    measured.peak_memory_bytes, measured.reserved_memory_bytes = peak_memory(device)
    measured.steps = meter.all_calls
    measured.batch = len(targets)  # a fix may form other batches than requested
    if scores.steps != meter.all_calls:
        scores.take(meter, losses)
    scores.fill(measured, asked.target_score)
    measured.arithmetic = fastest_arithmetic(model, device, inputs)
    measured.losses, measured.final_loss = losses.curve(), losses.lately()
    measured.train_samples = len(task.train)
    if meter.pauses:
        measured.notes.append(MeasureNote.SCORED_DURING_TRAINING)


def make_optimizer(name: str, model: torch.nn.Module, lr: float) -> torch.optim.Optimizer:
    if name == "sgd":
        return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    return torch.optim.AdamW(model.parameters(), lr=lr)


def make_meter(asked: ProgramArguments, epoch: int, device: torch.device) -> Meter:
    """How long to train: the requested steps, epochs or seconds, else an epoch or two seconds."""
    epochs, seconds = asked.epochs, asked.seconds
    if epochs is None and asked.steps is None and seconds is None:
        if asked.target_score is not None:
            epochs = _EPOCHS_TO_TARGET
        elif asked.measure is None:
            epochs = 1
        else:
            seconds = _SECONDS
    steps = asked.steps
    if epochs is not None:
        steps = min(steps or epochs * epoch, epochs * epoch)
    if asked.measure is None:
        return Meter(UntimedClock(device), Limits(steps, seconds, least=1), None)
    return Meter(clock_for(device), Limits(steps, seconds), WarmupRule())


if __name__ == "__main__":
    sys.exit(run_program("train", __doc__, train))
