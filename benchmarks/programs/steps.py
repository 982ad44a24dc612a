"""A training program like any other: it knows nothing of stepscope.

Prints one JSON line: how long each block of its steps took.
"""

import argparse
import json
import time
from dataclasses import asdict

from _training import PLANS, Training, calibrated, settle, waiter


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ms", type=int, choices=(1, 7, 40), default=7)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--block", type=int, default=20, help="steps per time taken")
    parser.add_argument("--size", type=int, help="instead of a calibration")
    parser.add_argument("--cores", type=int, nargs="*", default=[], help="cores to run on")
    options = parser.parse_args()

    settle(options.device, options.cores)
    plan = PLANS[options.device, options.ms]
    if options.size is None:
        plan = calibrated(plan, options.device, options.ms)
    else:
        plan = plan.sized(options.size)
    training = Training(plan, options.device)
    wait = waiter(options.device)
    block_ns = []
    done = 0
    wait()
    began = time.perf_counter_ns()
    while done < options.steps:
        for x, y in training.loader:
            training.step(x, y)
            done += 1
            if done % options.block == 0:
                wait()
                now = time.perf_counter_ns()
                block_ns.append(now - began)
                began = now
            if done == options.steps:
                break
    print(
        json.dumps(
            {
                "plan": asdict(plan),
                **training.described(),
                "steps": done,
                "block_steps": options.block,
                "block_ns": block_ns,
                "loss": training.last_loss,
            }
        )
    )


if __name__ == "__main__":
    main()
