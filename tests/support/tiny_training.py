"""Real trainings of tiny nets: as they are, in other arithmetic, or sabotaged.

Their losses are kept in tests/data; with STEPSCOPE_UPDATE_TRAININGS=1 they are trained anew.
"""

import dataclasses
import gzip
import json
import math
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from stepscope.measure.trial.record import ProofRecord, Trial, TrialRequest
from stepscope.record.trial import TrialStatus

RECORDED = Path(__file__).parent.parent / "data" / "trainings.json.gz"
UPDATE = "STEPSCOPE_UPDATE_TRAININGS"
SAMPLES, CLASSES = 500, 10
CLIP = 0.5


@dataclass(frozen=True)
class Recipe:
    """What is trained, and how the baseline does it."""

    net: str
    optimizer: str
    rate: float
    schedule: str
    batch: int = 32


RECIPES = {
    "mlp": Recipe("mlp", "momentum", 0.1, "cosine"),
    "cnn": Recipe("cnn", "adam", 3e-3, "drop"),
    "residual": Recipe("residual", "adamw", 2e-3, "warm-up"),
    # Chaotic: the smallest difference has become a large one after some tens of steps.
    "wild": Recipe("residual", "adamw", 3e-2, "warm-up", batch=8),
    # Losses that a hundred steps hardly change: little can be seen.
    "slow": Recipe("mlp", "momentum", 3e-4, "constant"),
}


@dataclass(frozen=True)
class How:
    """One way to train. The default is the baseline."""

    perturb: str | None = None
    perturb_seed: int = 0
    rounded: str | None = None
    """What goes into matrix products, and their gradients: float16, bfloat16 or tfloat32."""
    order: str | None = None
    """Of float32 sums: reversed, halves, double, batch (samples of a batch in another order) or
    channels_last."""
    optimizer: str | None = None
    """fused, or as torch chooses."""
    autocast: bool = False
    sabotage: str | None = None
    augment: int | None = None
    """The seed of random noise on every batch; None: there is none."""


def round_to(tensor: torch.Tensor, dtype: str, seed: int = 0) -> torch.Tensor:
    """Rounded once; float32: half a unit in the last place up or down, at random."""
    if dtype in ("float16", "bfloat16"):
        return tensor.to(getattr(torch, dtype)).to(tensor.dtype)
    if dtype == "tfloat32":
        bits = tensor.contiguous().view(torch.int32)
        return ((bits + 0x1000) & ~0x1FFF).view(torch.float32)
    generator = torch.Generator().manual_seed(seed)
    signs = torch.randint(0, 2, tensor.shape, generator=generator).to(tensor.dtype) * 2 - 1
    # Just over half a unit: a whole one upwards or downwards for about half of the values.
    return tensor * (1 + signs * 2.0**-24 * 1.0001)


class _Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, dtype: str) -> torch.Tensor:
        ctx.dtype = dtype
        return round_to(tensor, dtype)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return round_to(gradient, ctx.dtype), None


class _Linear(torch.nn.Linear):
    how = How()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        how, weight = self.how, self.weight
        if how.rounded:
            x, weight = _Rounded.apply(x, how.rounded), _Rounded.apply(weight, how.rounded)
        if how.order == "reversed":
            out = functional.linear(x.flip(-1), weight.flip(-1), self.bias)
        elif how.order == "halves":
            half = x.shape[-1] // 2
            out = x[..., :half] @ weight[:, :half].T + x[..., half:] @ weight[:, half:].T
            out = out + self.bias
        elif how.order == "double":
            out = functional.linear(x.double(), weight.double(), self.bias.double()).float()
        else:
            out = functional.linear(x, weight, self.bias)
        return _Rounded.apply(out, how.rounded) if how.rounded else out


class _Residual(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.up, self.down = _Linear(width, 2 * width), _Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(functional.gelu(self.up(self.norm(x))))


def _net(kind: str) -> torch.nn.Module:
    if kind == "mlp":
        parts = (_Linear(64, 48), torch.nn.ReLU(), _Linear(48, 48), torch.nn.ReLU())
        return torch.nn.Sequential(torch.nn.Flatten(), *parts, _Linear(48, CLASSES))
    if kind == "residual":
        blocks = (_Residual(32) for _ in range(2))
        return torch.nn.Sequential(
            torch.nn.Flatten(), _Linear(64, 32), *blocks, torch.nn.LayerNorm(32), _Linear(32, 10)
        )
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 8, 3, padding=1), torch.nn.BatchNorm2d(8), torch.nn.ReLU(),
        torch.nn.MaxPool2d(2), torch.nn.Conv2d(8, 16, 3), torch.nn.BatchNorm2d(16),
        torch.nn.ReLU(), torch.nn.Flatten(), _Linear(64, CLASSES),
    )  # fmt: skip


def _optimizer(recipe: Recipe, net: torch.nn.Module, how: How) -> torch.optim.Optimizer:
    given: dict[str, Any] = {how.optimizer: True} if how.optimizer else {}
    if recipe.optimizer == "momentum":
        return torch.optim.SGD(net.parameters(), lr=recipe.rate, momentum=0.9, **given)
    if recipe.optimizer == "adamw":
        return torch.optim.AdamW(net.parameters(), lr=recipe.rate, weight_decay=0.05, **given)
    return torch.optim.Adam(net.parameters(), lr=recipe.rate, **given)


def _factor(schedule: str, step: int, steps: int) -> float:
    """Cosine, constant, warm-up then constant, or a drop to a tenth after half the steps."""
    if schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * step / steps))
    if schedule == "constant":
        return 1.0
    if schedule == "warm-up":
        return min(1.0, (step + 1) / 20)
    return 1.0 if step < steps // 2 else 0.1


def _data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1234)
    centres = torch.randn(CLASSES, 1, 8, 8, generator=generator)
    generator.manual_seed(99)
    labels = torch.randint(0, CLASSES, (SAMPLES,), generator=generator)
    noise = torch.randn(SAMPLES, 1, 8, 8, generator=generator)
    return centres[labels] * 0.5 + noise, labels


def train(kind: str, seed: int, how: How, steps: int = 120) -> Trial:
    """One training from the first step on, as a trial tells of it."""
    recipe = RECIPES[kind]
    losses, norms = _kept(kind, seed, how, steps)
    rate, per_epoch = recipe.rate, math.ceil(SAMPLES / recipe.batch)
    shown = [0 if how.sabotage == "shown frozen" else step for step in range(steps)]
    ends = tuple(range(per_epoch, steps + 1, per_epoch))
    return Trial(
        TrialRequest(steps=steps, seed=seed, perturb=how.perturb, proof=True),
        number=1,
        status=TrialStatus.OK,
        steps=steps,
        losses=tuple(losses),
        proof=ProofRecord(
            grad_norms=tuple(norms),
            rates=tuple(rate * _factor(recipe.schedule, step, steps) for step in shown),
            epochs=ends,
            short_batches=ends if SAMPLES % recipe.batch else (),
        ),
    )


def _kept(kind: str, seed: int, how: How, steps: int) -> tuple[list[float], list[float]]:
    key = f"{kind} {seed} {steps} {_changed(how)}"
    if key not in _recorded():
        assert os.environ.get(UPDATE), f"{key} was never trained: set {UPDATE}=1 once, without -n"
        _recorded()[key] = losses_of(kind, seed, how, steps)
        text = json.dumps(_recorded(), indent=0, sort_keys=True).encode()
        RECORDED.write_bytes(gzip.compress(text, mtime=0))
    losses, norms = _recorded()[key]
    return losses, norms


def _changed(how: How) -> str:
    """What differs from the baseline."""
    usual = dataclasses.asdict(How())
    return " ".join(f"{k}={v}" for k, v in dataclasses.asdict(how).items() if v != usual[k])


@cache
def _recorded() -> dict[str, Any]:
    if not RECORDED.exists():
        return {}
    found: dict[str, Any] = json.loads(gzip.decompress(RECORDED.read_bytes()))
    return found


def losses_of(kind: str, seed: int, how: How, steps: int) -> tuple[list[float], list[float]]:
    """Trains now: the losses, and the first gradients' norms."""
    recipe = RECIPES[kind]
    torch.manual_seed(seed * 7919 + 5)
    net = _net(recipe.net)
    _Linear.how = how
    if how.order == "channels_last":
        net = net.to(memory_format=torch.channels_last)
    if how.perturb:
        with torch.no_grad():
            for number, parameter in enumerate(net.parameters()):
                parameter.copy_(round_to(parameter, how.perturb, 100 * how.perturb_seed + number))
    optimizer = _optimizer(recipe, net, how)
    images, labels = _data()
    order = torch.Generator().manual_seed(seed)
    losses: list[float] = []
    norms: list[float] = []
    batches: list[torch.Tensor] = []
    rate = optimizer.param_groups[0]["lr"]
    stale: torch.Tensor | None = None
    noise = (
        None if how.augment is None else torch.Generator().manual_seed(1000 * seed + how.augment)
    )
    for step in range(steps):
        if not batches:
            batches = [*torch.randperm(SAMPLES, generator=order).split(recipe.batch)]
        batch = batches.pop(0)
        if how.order == "batch":
            batch = batch.flip(0)
        if how.sabotage == "stale batch":
            stale, batch = batch, batch if stale is None else stale
        factor = _factor(recipe.schedule, 0 if how.sabotage == "shown frozen" else step, steps)
        optimizer.param_groups[0]["lr"] = rate * factor
        x = images[batch]
        if noise is not None:
            x = x + torch.randn(x.shape, generator=noise)
        if how.order == "channels_last":
            x = x.contiguous(memory_format=torch.channels_last)
        with torch.autocast("cpu", torch.bfloat16, enabled=how.autocast):
            loss = functional.cross_entropy(net(x), labels[batch])
        optimizer.zero_grad()
        _backward(loss, net, how)
        if len(norms) < 3:
            norms.append(math.hypot(*(float(p.grad.norm()) for p in net.parameters())))
        if how.sabotage == "hidden rate":
            optimizer.param_groups[0]["lr"] *= 0.9
        if how.sabotage == "hidden frozen":
            optimizer.param_groups[0]["lr"] = rate * _factor(recipe.schedule, 0, steps)
        if how.sabotage != "dropped steps" or (step + 1) % 10:
            optimizer.step()
        losses.append(loss.item())
    return losses, norms


def _backward(loss: torch.Tensor, net: torch.nn.Module, how: How) -> None:
    scale = 2.0**12 if how.rounded == "float16" or how.sabotage == "clipped scaled" else 1.0
    (loss * scale).backward()
    gradients = [p.grad for p in net.parameters() if p.grad is not None]
    if how.sabotage == "clipped scaled":
        torch.nn.utils.clip_grad_norm_(net.parameters(), CLIP, foreach=False)
    for gradient in gradients:
        gradient.div_(scale)
    if how.sabotage not in ("unclipped", "clipped scaled"):
        torch.nn.utils.clip_grad_norm_(net.parameters(), CLIP, foreach=False)
