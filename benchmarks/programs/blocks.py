"""Blocks of steps, observed and bare in turn, inside one process.

A round is one block each of `bare`, `observed` and `control` (bare once more), in random order.
With `--recordings N` steps are recorded N times at even distances, between two rounds.
Prints one JSON line: how long every block and its median step took, in the order they ran.
"""

import argparse
import json
import random
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise, permutations
from pathlib import Path
from statistics import median
from typing import Any

from _programs import PROGRAMS, MissingError
from _switch import Switch
from _training import settle, waiter

KINDS = ("bare", "observed", "control")
RECORDING = "recording"
LEAST_ROUNDS = 2  # before, between and after recordings, however late it is
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
    """The steps of a program, cut into blocks: called as each of them ends."""

    def __init__(
        self,
        switch: Switch,
        wait: Callable[[], Any],
        steps: tuple[int, int],
        todo: list[tuple[str, ...]],
        seconds: float,
        recordings: int,
    ) -> None:
        self._switch = switch
        self._wait = wait
        self._lead, self._steps = steps
        self._todo = todo
        began = time.monotonic()
        self._warm_until = began + min(WARMUP_S, seconds / 4)
        self._until = began + seconds
        self._due = [began + seconds * n / (recordings + 1) for n in range(1, recordings + 1)]
        self._recorded = self._since = 0  # recordings, and rounds since the last one
        self.rounds: list[list[Block]] = []
        self._kind = ""  # of the block under way; none while it warms up
        self._left = 0
        self._before = self._seen = 0
        self._times: list[int] = []
        self._round_began, self._longest = began, 0.0

    def step_ended(self) -> bool:
        """Whether that was the last."""
        if not self._kind:
            return time.monotonic() >= self._warm_until and self._next_block()
        if self._kind == RECORDING:
            return self._switch.has_recorded() and self._end_recording()
        self._seen += 1
        if self._seen < self._lead:
            return False
        if self._seen == self._lead:
            self._wait()
            self._times = [time.perf_counter_ns()]
            return False
        self._times.append(time.perf_counter_ns())
        return self._seen == self._lead + self._steps and self._end_block()

    def _end_block(self) -> bool:
        """A block is timed from an idle device to an idle device, without its first steps. On CUDA
        its median step is the host's: from one step's end to the next one's."""
        self._wait()
        block_ns = time.perf_counter_ns() - self._times[0]
        seen = self._switch.steps - self._before
        if seen != (self._seen if self._kind == "observed" else 0):
            raise RuntimeError(f"a block of kind {self._kind} has {seen} observed steps")
        step_ns = median(b - a for a, b in pairwise(self._times))
        block = {"kind": self._kind, "block_ns": block_ns, "step_ns": step_ns}
        block["recorded"] = self._recorded
        self.rounds[-1].append(block)
        return self._next_block()

    def _end_recording(self) -> bool:
        self._recorded += 1
        self._since = 0
        self._round_began = time.monotonic()
        return self._next_block()

    def _next_block(self) -> bool:
        """Whether there is none: the time is up, and there are rounds after every recording."""
        now = time.monotonic()
        if not self.rounds or len(self.rounds[-1]) == len(KINDS):
            self._longest = max(self._longest, now - self._round_began)
            self._round_began = now
            enough = self._since >= LEAST_ROUNDS
            if enough and self._due and now >= self._due[0]:
                del self._due[0]
                self._kind = RECORDING
                self._switch.record()
                return False
            late = enough and not self._due and now + self._longest > self._until
            if late or len(self.rounds) == len(self._todo):
                return True
            self.rounds.append([])
            self._since += 1
        self._kind = self._todo[len(self.rounds) - 1][len(self.rounds[-1])]
        self._switch.turn(self._kind == "observed")
        self._before, self._seen = self._switch.steps, 0
        return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", choices=PROGRAMS, default="cnn")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=1000, help="at most")
    parser.add_argument("--seconds", type=float, default=60, help="for the rounds")
    parser.add_argument("--steps", type=int, default=20, help="timed in a block")
    parser.add_argument("--lead", type=int, default=5, help="before them, in every block")
    parser.add_argument("--size", type=int, help="instead of a calibration")
    parser.add_argument("--cores", type=int, nargs="*", default=[], help="cores to run on")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--recordings", type=int, default=0, help="between rounds [0]")
    parser.add_argument("--overhead", type=float, default=0.01, help="the observer's budget")
    options = parser.parse_args()

    settle(options.device, options.cores)
    try:
        program = PROGRAMS[options.program](options.device, options.size)
    except MissingError as problem:
        print(json.dumps({"missing": str(problem)}))
        return
    with tempfile.TemporaryDirectory() as folder:
        switch = Switch(program.model, Path(folder), options.overhead)
        todo = orders(options.rounds, options.seed)
        lengths = options.lead, options.steps
        wait = waiter(options.device)
        blocks = Blocks(switch, wait, lengths, todo, options.seconds, options.recordings)
        program.run(blocks.step_ended)
        switch.end()
    report: dict[str, Any] = {"size": program.size, "rounds": blocks.rounds}
    report |= {"modules": len(list(program.model.modules()))}
    report |= {"parameters": sum(p.numel() for p in program.model.parameters())}
    report |= {"block_steps": options.steps, "lead_steps": options.lead}
    print(json.dumps(report))


if __name__ == "__main__":
    main()
