"""Break one part of the probe after the other; print the losses of training with each broken.

Each part is broken while a run in this process is under way, so that every fault meets the probe
where the program's own calls are on the stack.
"""

import importlib
import json
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import stepscope

STEPS = 44  # a window opens at the 40th if not before
PARTS = {
    "probe.row_log": ["RowLog.end_row", "RowLog.set_loss", "RowLog._fold"],
    "probe.sites": ["Sites.locate", "Sites.add", "Sites._new"],
    "probe.step_rule": ["StepRule.add"],
    "probe.device_clock": ["DeviceClock.end_row", "DeviceClock.loss"],
    "probe.window": ["Window.step_ended", "Window._start", "Window._begin_step", "Window._stop"],
    "probe.core": ["Core.optimizer_made", "Core.called", "Core.backward_ended", "Core.delivered"],
    "probe.program_state": ["MemoryReader._step", "MemoryReader.write", "ConfigReader.write"],
    "probe.points.root_model": ["RootModels.returned", "RootModels.number", "RootModels.adopt"],
    "probe.points.training": ["OptimizerPoint.number"],
    "probe.points.loader": ["batch_axis"],
    "probe.dataclock.clock": ["DataClock._source"],
    "store.json_lines": ["FactLog.write"],
    "store.table": ["Table.close"],
}


class FaultError(Exception):
    """What the broken part raises."""


def broken(*args, **kwargs):
    raise FaultError


def train():
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(4 * STEPS, 4))
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for (x,) in DataLoader(data, batch_size=4):
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def with_fault(owner, name):
    """The losses, or what reached the program."""
    original = getattr(owner, name)
    finders = list(sys.meta_path)
    number[0] += 1
    try:
        with stepscope.observe(f"run{number[0]}", window=int(owner is Window)):
            setattr(owner, name, broken)
            try:
                return train()
            except Exception as problem:
                return f"training raised {problem!r}"
            finally:
                if name not in ("close", "write"):
                    setattr(owner, name, original)
    except Exception as problem:
        return f"observing raised {problem!r}"
    finally:
        setattr(owner, name, original)
        if sys.meta_path != finders:
            left.append(f"{owner.__name__}.{name}")
            sys.meta_path[:] = finders


number = [0]
left = []
Window = importlib.import_module("stepscope.probe.window").Window
results = {"no fault": train()}
for module, names in PARTS.items():
    for path in names:
        owner = importlib.import_module(f"stepscope.{module}")
        *cls, name = path.split(".")
        for part in cls:
            owner = getattr(owner, part)
        results[f"{module}.{path}"] = with_fault(owner, name)
print(json.dumps({"results": results, "left": left}), flush=True)
