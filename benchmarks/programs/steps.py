"""A training program like any other: it knows nothing of stepscope.

Prints one JSON line: how long each block of its steps took.
"""

import argparse
import json
import time

from _programs import PROGRAMS, MissingError
from _training import settle, waiter


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", choices=PROGRAMS, default="cnn")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--block", type=int, default=20, help="steps per time taken")
    parser.add_argument("--size", type=int, help="instead of a calibration")
    parser.add_argument("--cores", type=int, nargs="*", default=[], help="cores to run on")
    options = parser.parse_args()

    settle(options.device, options.cores)
    try:
        program = PROGRAMS[options.program](options.device, options.size)
    except MissingError as problem:
        print(json.dumps({"missing": str(problem)}))
        return
    wait = waiter(options.device)
    block_ns: list[int] = []
    done, began = 0, time.perf_counter_ns()

    def step_ended() -> bool:
        nonlocal done, began
        done += 1
        if done % options.block == 0:
            wait()
            now = time.perf_counter_ns()
            block_ns.append(now - began)
            began = now
        return bool(done == options.steps)

    program.run(step_ended)
    found = {"steps": done, "block_steps": options.block, "block_ns": block_ns}
    print(json.dumps(found | {"size": program.size}))


if __name__ == "__main__":
    main()
