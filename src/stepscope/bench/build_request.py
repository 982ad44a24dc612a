"""Turns a command line into a checked request, or one line why not."""

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stepscope.bench.grid import (
    MODES,
    SETTINGS,
    BenchRequest,
    Settings,
    Variant,
    ablation_fixes,
    ablation_variants,
    fix_variants,
    grid_points,
)
from stepscope.record.errors import UsageError
from stepscope.workloads import arguments

DEVICES: tuple[str, ...] = ("cpu", "cuda")
_LOADING = {"workers", "decode_ms", "latency_ms", "resize", "disk_mb_s"}
_LEARNING = {"epochs", "test_samples", "target_score"}


def build_request(
    models: Sequence[str],
    mode: str | None = None,
    batch: str | None = None,
    device: str | None = None,
    fixes: Sequence[str] = (),
    ablate: str | None = None,
    settings: Mapping[str, int | float | str | None] | None = None,
    **rest: Any,
) -> BenchRequest:
    """The request; `mode`, `batch` and `device` are comma-separated lists, None for the default.
    `settings` that are None were not given; `rest` goes into the request unchanged. Raises
    UsageError."""
    if fixes and ablate:
        raise UsageError("--ablate makes its own variants: leave out --fix")
    modes = parse_modes(models, mode)
    if rest.get("study") == "cpu-gpu":
        if lacking := why_no_cuda():
            raise UsageError(f"--study cpu-gpu needs a GPU: {lacking}")
        if device is not None and set(parse_devices(device)) != set(DEVICES):
            raise UsageError("--study cpu-gpu measures both devices: leave out --device")
        devices = DEVICES
    else:
        devices = parse_devices(device)
    chosen = ablation_variants(ablate) if ablate else fix_variants(fixes)
    check_needs(chosen, devices)
    given: Settings = {name: value for name, value in (settings or {}).items() if value is not None}
    if "train" in modes and not rest.get("study"):
        given.setdefault("data", _usual_data(given, chosen))
    for name in given:
        knowing = [one for one in MODES if name in SETTINGS[one]]
        if not set(knowing) & set(modes):
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"{option} goes with --mode {' or '.join(knowing)} only")
    made = BenchRequest(
        models=tuple(dict.fromkeys(models)),
        modes=modes,
        devices=devices,
        batches=None if batch is None else parse_numbers("--batch", batch),
        variants=chosen,
        ablate=ablation_fixes(ablate) if ablate else (),
        settings=dict(sorted(given.items())),
        **rest,
    )
    for point in grid_points(made):
        arguments.parse_arguments(point.mode, "", point.command(Path("measured.json"))[1:])
    return made


def _usual_data(given: Iterable[str], chosen: Iterable[Variant]) -> str:
    """The default training data: samples on the device, so that the model is measured; a loader's
    if options are about loading or learning."""
    from stepscope.fixes.registry import fix_named

    names = {text.partition("=")[0] for variant in chosen for text in variant.fixes}
    loading = any(fix_named(name).group == "data" for name in names)
    return "synthetic" if loading or (_LOADING | _LEARNING) & set(given) else "resident"


def parse_modes(models: Iterable[str], text: str | None) -> tuple[str, ...]:
    """The requested modes, by default training unless a model lacks it; every model must have them
    all."""
    from stepscope.workloads.catalogue import find_workload

    found = [find_workload(model) for model in models]
    if not found:
        raise UsageError("name a model, as in stepscope bench resnet18; --list shows them")
    if text is None:
        text = next((mode for mode in MODES if all(mode in one.modes for one in found)), MODES[0])
    asked = _listed(text, "--mode", MODES)
    for mode in asked:
        for one in found:
            if mode not in one.modes:
                raise UsageError(f"{one.name} has no mode {mode}: it has {', '.join(one.modes)}")
    return asked


def parse_numbers(option: str, text: str, least: int = 1) -> tuple[int, ...]:
    """The numbers in a list. Raises UsageError."""
    pieces = [piece.strip() for piece in text.split(",")]
    if not all(p.isdecimal() and p.isascii() and len(p) < 8 and int(p) >= least for p in pieces):
        numbers = f"whole numbers of {least} or more, as in {option} 1,8,32"
        raise UsageError(f"{option} {text}: use {numbers}")
    return tuple(dict.fromkeys(map(int, pieces)))


def parse_devices(text: str | None) -> tuple[str, ...]:
    """The devices in a list, each checked to exist; None: the GPU if there is one."""
    lacking = why_no_cuda()
    if text is None:
        return ("cpu",) if lacking else ("cuda",)
    asked = _listed(text, "--device", DEVICES)
    if "cuda" in asked and lacking:
        raise UsageError(f"no CUDA device: {lacking}; use --device cpu")
    return asked


def why_no_cuda() -> str | None:
    """Why a program cannot use a GPU here; None if it apparently can. Raises UsageError without
    torch."""
    from stepscope.hardware.gpus import visible_gpu_index
    from stepscope.hardware.machine import torch_build

    torch = torch_build()
    if torch is None:
        raise UsageError(f"no torch for {sys.executable}: pip install torch")
    if torch.cuda is None:
        return f"torch {torch.version} is a CPU-only build"
    return "no GPU is visible" if visible_gpu_index(os.environ) is None else None


def check_needs(chosen: Iterable[Variant], devices: Iterable[str]) -> None:
    """Raise UsageError for a fix whose needs a device does not meet."""
    from stepscope.fixes.registry import all_fixes, fix_named

    asked = {text.partition("=")[0] for variant in chosen for text in variant.fixes}
    for device in devices:
        for name in sorted(asked):
            needs = fix_named(name).needs
            if needs is not None and needs != device:
                able = ", ".join(one.name for one in all_fixes() if one.needs in (None, device))
                raise UsageError(f"--fix {name} needs {needs}; for {device} there are {able}")


def _listed(text: str, option: str, possible: Sequence[str]) -> tuple[str, ...]:
    asked = tuple(dict.fromkeys(piece.strip() for piece in text.split(",")))
    for one in asked:
        if one not in possible:
            raise UsageError(f"{option} {one or text!r}: use {', '.join(possible)}")
    return asked
