"""What each hook costs, measured directly: calls that do nothing, bare and then observed.

What the hooks wrap is replaced by functions that return at once; the real observer is installed on
top, and the difference per call is the hook's own time. The calls come in the order of a step, in
steps whose phases are clocked and in steps that are not.
`warm`: one right after the other; `cold`: a real forward and backward before each, so that code and
data have left the processor's caches, as they have in a program. Prints one JSON line.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from statistics import median
from time import monotonic_ns
from typing import Any

import torch
from _training import PLANS, Training, settle, waiter
from torch.utils.data import dataloader
from torch.utils.data._utils import fetch

from stepscope.probe.observer import Observer
from stepscope.probe.patches import ImportWatch
from stepscope.probe.row_log import FORWARD
from stepscope.probe.step_rule import NEVER
from stepscope.record.facts import SiteKind
from stepscope.record.probe_options import ProbeOptions
from stepscope.record.row_log import RowKind

CYCLES = {"warm_us": 3000, "cold_us": 300}
Action = Callable[[], Any]


class Root(torch.nn.Module):  # type: ignore[misc]
    """A model that returns its parameter at once."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))

    def forward(self, _: Any) -> Any:
        return self.weight


class Batches(dataloader._BaseDataLoaderIter):  # type: ignore[misc]
    """A loader's iterator that has its batch ready."""

    def __init__(self) -> None:
        self.batch = [torch.zeros(8, 4), torch.zeros(8, dtype=torch.int64)]


class Stepper(torch.optim.Optimizer):  # type: ignore[misc]
    """An optimizer whose step does nothing."""

    def step(self, closure: Any = None) -> None:
        pass


def hollow() -> None:
    """Have what the hooks wrap return at once."""
    dataloader._BaseDataLoaderIter.__next__ = lambda self: self.batch
    torch.autograd.backward = lambda *_: None
    torch.optim.Optimizer.zero_grad = lambda self: None
    torch.Tensor.to = lambda self, *_: self


def actions(device: str) -> dict[str, Action]:
    """The calls of a step, by the name of the hook in their way."""
    root, batches = Root(), Batches()
    optimizer = Stepper([root.weight], {})
    data = torch.utils.data.TensorDataset(torch.zeros(8, 4))
    fetcher = fetch._MapDatasetFetcher(data, True, len, False)
    loss = torch.zeros((), device=device)
    x, y = batches.batch
    calls: dict[str, Action] = {
        "loader's fetch (data clock)": lambda: fetcher.fetch((0,)),
        "loader's next": lambda: next(batches),
    }
    if device == "cuda":
        calls["two moves to the device"] = lambda: (x.to("cuda"), y.to("cuda"))
    return calls | {
        "zero_grad": lambda: optimizer.zero_grad(),
        "forward": lambda: root(x),
        "backward": lambda: torch.autograd.backward(loss),
        "optimizer step": lambda: optimizer.step(),
    }


def pieces(observer: Observer, device: str) -> dict[str, Action]:
    """What the hooks are made of."""
    log, sites, clock = observer.core.log, observer.core.sites, observer.core.device
    loss = torch.zeros((), device=device)

    def row_with_loss() -> None:
        clock.loss(loss)
        clock.end_row(log.end_row(RowKind.STEP))

    def mark() -> None:
        clock._pool.append(clock._record())

    found: dict[str, Action] = {
        "log.enter + leave": lambda: (log.enter(FORWARD), log.leave()),
        "log.end_row": lambda: log.end_row(RowKind.STEP),
        "sites.locate": lambda: sites.locate(SiteKind.FORWARD, 1),
        "sites.add": lambda: sites.add(0, 1),
        "a row and its loss, with the device's clock": row_with_loss,
    }
    if device == "cuda":
        found["a mark on the stream"] = mark
    return found


def took(actions: dict[str, Action], work: Action) -> dict[str, dict[str, float]]:
    """Microseconds of each action, warm and cold: medians over cycles through all of them."""
    found: dict[str, dict[str, float]] = {name: {} for name in actions}
    for clock, cycles in CYCLES.items():
        between = work if clock == "cold_us" else _nothing
        times: dict[str, list[int]] = {name: [] for name in actions}
        for _ in range(cycles):
            for name, action in actions.items():
                between()
                began = time.perf_counter_ns()
                action()
                times[name].append(time.perf_counter_ns() - began)
        for name in actions:
            found[name][clock] = median(times[name]) / 1000
    return found


def _nothing() -> None:
    pass


def real_work(device: str) -> Action:
    """A forward and backward that no hook sees, done when it returns."""
    training = Training(PLANS[device, 1], device)
    forward, backward = training.model.forward, torch.autograd.backward
    x, y = (part.to(device) for part in next(training.batches()))
    wait = waiter(device)

    def work() -> None:
        backward(training.loss.forward(forward(x), y))
        wait()

    return work


def more(
    took: dict[str, dict[str, float]], base: dict[str, dict[str, float]]
) -> dict[str, dict[str, float]]:
    """What calls take beyond a base of the same names."""
    return {
        name: {clock: us - base[name][clock] for clock, us in clocks.items()}
        for name, clocks in took.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--cores", type=int, nargs="*", default=[], help="cores to run on")
    options = parser.parse_args()
    settle(options.device, options.cores)
    work = real_work(options.device)
    hollow()
    calls = actions(options.device)
    bare = took(calls, work)
    with tempfile.TemporaryDirectory() as folder:
        launched_ns = monotonic_ns()
        observer = Observer(ProbeOptions(folder, launched_ns, window=0, overhead=1e-6))
        observer.install(ImportWatch(launched_ns))
        core, clocks = observer.core, observer.core.clocks
        assert clocks is not None
        for _ in range(10):
            for call in calls.values():
                call()
        clocks._left = NEVER  # clocked until told otherwise
        hooks = more(took(calls, work), bare)
        parts = pieces(observer, options.device)
        made_of = more(took(parts, work), took(dict.fromkeys(parts, _nothing), work))
        clocks._left = 1
        while not core.log.unclocked:
            for call in calls.values():
                call()
        clocks._until = clocks._latest_ns = NEVER
        unclocked = more(took(calls, work), bare)
        clocks.settle()
        if core.log.off or not core.log.unclocked:
            raise RuntimeError("the observer has missed something")
        observer.end()
    print(json.dumps({"hooks": hooks, "unclocked": unclocked, "pieces": made_of}))


if __name__ == "__main__":
    main()
