"""Observe parts of this very process, and print what came of it as one JSON document."""

import json
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data._utils import fetch, worker
from torch.utils.data.dataloader import _BaseDataLoaderIter

import stepscope

optimizers = sys.modules["torch.optim.optimizer"]  # torch.optim hides the module's name
OWNERS = {
    "torch": (torch, ("save", "load", "compile", "nonzero")),
    "autograd": (torch.autograd, ("backward", "grad")),
    "Module": (nn.Module, ("__call__", "forward", "to", "cuda")),
    "Net": (nn.Sequential, ("__call__",)),
    "Tensor": (torch.Tensor, ("backward", "to", "cuda", "cpu", "item", "tolist", "numpy")),
    "Optimizer": (torch.optim.Optimizer, ("__init__", "zero_grad", "step")),
    "GradScaler": (torch.amp.GradScaler, ("step", "scale", "update")),
    "DataLoader": (DataLoader, ("__init__", "__iter__")),
    "iterator": (_BaseDataLoaderIter, ("__next__",)),
    "map fetcher": (fetch._MapDatasetFetcher, ("fetch",)),
    "iterable fetcher": (fetch._IterableDatasetFetcher, ("fetch",)),
    "fetcher": (fetch._BaseDatasetFetcher, ("collate_fn",)),
    "worker": (worker, ("_worker_loop",)),
}


def patched():
    """Every place that may be patched, and what stands there."""
    return {
        f"{owner}.{name}": vars(where).get(name)
        for owner, (where, names) in OWNERS.items()
        for name in names
    }


def surroundings():
    return {
        "finders": list(sys.meta_path),
        "trace": sys.gettrace(),
        "step hooks": list(optimizers._global_optimizer_pre_hooks.values())
        + list(optimizers._global_optimizer_post_hooks.values()),
    }


def train(steps, fail=False):
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(8 * steps, 4))
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for (x,) in DataLoader(data, batch_size=8):
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    if fail:
        raise ValueError("inside")
    return losses


said = {"unobserved": train(4), "step": stepscope.step()}
before, around = patched(), surroundings()
with stepscope.observe("first", window=2) as first:
    said["during"] = repr(first)
    said["first"] = train(4)
    said["patched during"] = [name for name, it in patched().items() if it is not before[name]]
    try:
        with stepscope.observe("nested"):
            said["nested"] = "allowed"
    except Exception as problem:
        said["nested"] = str(problem)
said["left by first"] = [name for name, it in patched().items() if it is not before[name]]
said["first steps"] = first.document["steps"]["count"]
said["first losses"] = first.document["losses"]
said["shown"] = repr(first)
try:
    with stepscope.observe("second") as second:
        train(6, fail=True)
except ValueError as problem:
    said["raised"] = str(problem)
said["second steps"] = second.document["steps"]["count"]
said["second error"] = second.document["run"]["error"]
with stepscope.observe("third") as third:
    for _ in range(5):
        stepscope.step()
said["third steps"] = third.document["steps"]["count"]
said["left"] = [name for name, it in patched().items() if it is not before[name]]
said["changed around"] = [name for name, it in surroundings().items() if it != around[name]]
said["after"] = train(4)
try:
    with stepscope.observe("first"):
        said["again"] = "allowed"
except Exception as problem:
    said["again"] = str(problem)
print(json.dumps(said))
