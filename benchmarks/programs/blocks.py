"""Blocks of steps, observed and bare in turn, inside one process.

A round is one block each of `bare`, `observed` and `control` (bare once more), in random order.
Prints one JSON line: how long every block and its median step took, in the order they ran.
"""

import argparse
import json
import random
import tempfile
import time
from dataclasses import asdict
from itertools import pairwise, permutations
from pathlib import Path
from statistics import median
from typing import Any

from _switch import Switch
from _training import PLANS, Training, calibrated, settle, waiter

KINDS = ("bare", "observed", "control")
WARMUP_S = 1.0
Block = dict[str, Any]


def orders(rounds: int, seed: int) -> list[tuple[str, ...]]:
    """An order for each round: all six, shuffled, again and again, so that none has a favourite."""
    draw = random.Random(seed)
    all_orders = list(permutations(KINDS))
    found: list[tuple[str, ...]] = []
    while len(found) < rounds:
        draw.shuffle(all_orders)
        found += all_orders
    return found[:rounds]


class Blocks:
    """The loop, cut into blocks."""

    def __init__(self, training: Training, switch: Switch, lead: int, steps: int) -> None:
        self._training = training
        self._switch = switch
        self._lead = lead
        self._steps = steps
        self._wait = waiter(training.device)
        self._batches = training.batches()

    def run(self, steps: int) -> tuple[int, float]:
        """Nanoseconds of some steps, from an idle device to an idle device, and of the median one.

        On CUDA the median is the host's: from one step's begin to the next one's.
        """
        clock = time.perf_counter_ns
        self._wait()
        times = [clock()]
        for _ in range(steps):
            self._training.step(*next(self._batches))
            times.append(clock())
        self._wait()
        return clock() - times[0], median(b - a for a, b in pairwise(times))

    def block(self, kind: str) -> Block:
        """A block, timed without its first steps. Raises if it was not what it claims."""
        on = kind == "observed"
        self._switch.turn(on)
        before = self._switch.steps
        self.run(self._lead)
        block_ns, step_ns = self.run(self._steps)
        seen = self._switch.steps - before
        if seen != (self._lead + self._steps if on else 0):
            raise RuntimeError(f"a block of kind {kind} has {seen} observed steps")
        return {"kind": kind, "block_ns": block_ns, "step_ns": step_ns}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ms", type=int, choices=(1, 7, 40), default=7)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=1000, help="at most")
    parser.add_argument("--seconds", type=float, default=60, help="for the rounds")
    parser.add_argument("--steps", type=int, default=20, help="timed in a block")
    parser.add_argument("--lead", type=int, default=5, help="before them, in every block")
    parser.add_argument("--size", type=int, help="instead of a calibration")
    parser.add_argument("--cores", type=int, nargs="*", default=[], help="cores to run on")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--overhead", type=float, help="the observer's budget [none]")
    options = parser.parse_args()

    settle(options.device, options.cores)
    plan = PLANS[options.device, options.ms]
    if options.size is None:
        plan = calibrated(plan, options.device, options.ms)
    else:
        plan = plan.sized(options.size)
    training = Training(plan, options.device)
    with tempfile.TemporaryDirectory() as folder:
        switch = Switch(training.model, Path(folder), options.overhead)
        blocks = Blocks(training, switch, options.lead, options.steps)
        rounds = measure(blocks, orders(options.rounds, options.seed), options.seconds)
        switch.end()
    report: dict[str, Any] = {"plan": asdict(plan), **training.described(), "rounds": rounds}
    report |= {"block_steps": options.steps, "lead_steps": options.lead}
    print(json.dumps(report))


def measure(blocks: Blocks, todo: list[tuple[str, ...]], seconds: float) -> list[list[Block]]:
    """Rounds in the order they ran, as many as fit into the time, at least two."""
    began = time.monotonic()
    warm_until = began + min(WARMUP_S, seconds / 4)
    while time.monotonic() < warm_until:
        blocks.run(5)
    rounds: list[list[Block]] = []
    longest = 0.0
    for order in todo:
        begun = time.monotonic()
        if len(rounds) >= 2 and begun - began + longest > seconds:
            break
        rounds.append([blocks.block(kind) for kind in order])
        longest = max(longest, time.monotonic() - begun)
    return rounds


if __name__ == "__main__":
    main()
