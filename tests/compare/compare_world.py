"""Sides of comparisons, made up: runs, benches and tunes with just what is looked at."""

from copy import deepcopy

import numpy as np
from documents import made

from stepscope.analyze.run.document import RunSummary
from stepscope.compare.sides import Item, run_side

MACHINE = {
    "cpu": {"model": "Some CPU", "usable_cores": 8},
    "gpus": [{"name": "Some GPU", "power_limit_w": 700.0}],
    "driver": "580.1",
    "torch": {"version": "2.13", "cuda": "13.0"},
}
RUN = {
    "run": {
        "id": "7f3a", "program": "/home/me/train.py", "argv": ["--epochs", "3"], "device": "cuda",
        "torch": "2.13", "python": "3.12", "stepscope": "0.1", "git": "abc",
    },
    "steps": {"count": 100, "what": "training", "samples_per_step": 32.0},
    "phases_ms": {
        "data_wait": 1.0, "h2d": 0.5, "forward": 3.0, "backward": 4.0, "optimizer": 1.0,
        "other": 0.5,
    },
    "losses": [1.0, 0.9, 0.8],
    "memory": {"peak_bytes": 2**30},
    "gpu": {
        "energy_j_per_step": 2.0, "busy_fraction": 0.5, "peak_reserved_bytes": 2**31,
        "kernels_per_step": 100.0,
    },
    "loaders": [{"batch_size": 32, "num_workers": 4, "pin_memory": True}],
    "config": {
        "machine": MACHINE,
        "models": [{"name": "Net", "dtypes": {"float32": 10}, "parameters": 10}],
        "optimizers": [{"name": "Adam", "lr": 0.001, "fused": None}],
        "switches": {"tf32_matmul": "highest"},
        "environment": {"OMP_NUM_THREADS": "1"},
    },
    "fixes": [],
    "timeline": None,
}  # fmt: skip


def times(mean=10.0, seed=0, steps=120, spread=0.01):
    """Steady step times, ms."""
    noise = np.random.default_rng(seed).normal(0, spread, steps)
    return tuple((mean * (1 + noise - noise.mean())).tolist())


def item(*series, samples=32.0, what="training", key="", label=""):
    return Item(key, label, tuple(series), samples, what)


def run(mean=10.0, name="run", seed=0, samples=32.0, what="training", **more):
    """A run; `more` replaces parts of its document, `a__b` for `b` in `a`."""
    more |= {"steps__samples_per_step": samples, "steps__what": what}
    document = deepcopy(RUN)
    for key, value in more.items():
        where = document
        *parents, last = key.split("__")
        for parent in parents:
            where = where[parent]
        where[last] = value
    return run_side(name, made(RunSummary, document), times(mean, seed))
