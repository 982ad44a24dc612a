"""A request to `stepscope bench`, and the points of its grid."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, Final, Self

from msgspec import Struct, to_builtins
from msgspec.structs import astuple

from stepscope.record.errors import UsageError

MODES: Final = ("train", "infer", "generate")
_COMMON = ("size", "classes", "length", "steps", "seconds", "seed", "memory_limit_gib", "threads")
_DATA = ("data", "samples", "workers", "decode_ms", "latency_ms", "resize", "disk_mb_s")
_LEARNING = ("test_samples", "epochs", "target_score")
SETTINGS: Final[Mapping[str, frozenset[str]]] = {
    "train": frozenset({*_COMMON, *_DATA, *_LEARNING}),
    "infer": frozenset({*_COMMON, *_DATA}),
    "generate": frozenset({*_COMMON, "prompt", "new_tokens"} - {"length"}),
}
"""The settings each mode's program knows; their options are the same words with dashes."""

Settings = dict[str, int | float | str | list[int | bool]]
"""Options of a workload program by name; for a grid of loaders, lists of them."""


class Point(Struct, frozen=True):
    """What one process measures; `fixes` is () without fixes."""

    model: str
    mode: str
    batch: int
    device: str
    fixes: tuple[str, ...] = ()
    settings: Settings = {}

    @classmethod
    def of(
        cls,
        model: str,
        mode: str,
        batch: int,
        device: str,
        fixes: Sequence[str] = (),
        **settings: Any,
    ) -> Self:
        """A point with those settings that its mode knows; None: not given."""
        known = SETTINGS[mode]
        kept = {k: v for k, v in sorted(settings.items()) if k in known and v is not None}
        return cls(model, mode, batch, device, tuple(fixes), kept)

    def key(self) -> str:
        """The point as one stable line of text, equal for equal points in any process."""
        return json.dumps(astuple(self), sort_keys=True, separators=(",", ":"))

    def options(self) -> list[str]:
        """Its options, as workload programs take them."""
        words = ["--model", self.model, "--batch", str(self.batch), "--device", self.device]
        for name, value in self.settings.items():
            words += [f"--{name.replace('_', '-')}", str(value)]
        return words

    def command(self, measure_file: Path) -> list[str]:
        """The arguments of `python -m` that measure it into a file."""
        program = f"stepscope.workloads.{self.mode}"
        return [program, *self.options(), "--measure", str(measure_file)]


_NOT_MEASURED = ("timeout_s", "price_per_hour", "carbon_intensity")


class Variant(Struct, frozen=True):
    """Fixes measured together, () for none. `roles`: its roles in an ablation."""

    label: str
    fixes: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()


class BenchRequest(Struct, frozen=True):
    """A grid: every model at every batch, in every mode, on every device, with every variant."""

    models: tuple[str, ...] = ()
    modes: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    batches: tuple[int, ...] | None = None  # None: each model's own
    variants: tuple[Variant, ...] = (Variant("none"),)
    ablate: tuple[str, ...] = ()
    """The fixes of an ablation, in cumulative order; () without one."""
    settings: Settings = {}
    rounds: int = 3  # processes per point
    timeout_s: float = 1800.0  # per process
    price_per_hour: float | None = None
    carbon_intensity: float | None = None  # grams of CO₂ per kWh
    study: str | None = None

    def identity(self) -> dict[str, object]:
        """What its measurements depend on: the request without prices and limits, plus the text of
        the user's model files."""
        asked = {k: v for k, v in to_builtins(self).items() if k not in _NOT_MEASURED}
        names = (model.rpartition(":")[0] for model in self.models)
        digests = {
            name: hashlib.sha256(Path(name).read_bytes()).hexdigest()[:16]
            for name in names
            if name.endswith(".py") and Path(name).is_file()
        }
        return {**asked, "files": digests}


NO_FIXES = "none"


def grid_points(request: BenchRequest) -> list[Point]:
    """Every point once, variants adjacent; batch None: each model's own."""
    from stepscope.workloads.catalogue import find_workload

    found: dict[str, Point] = {}
    for model in request.models:
        batches = request.batches or (find_workload(model).batch,)
        for batch, mode, device, variant in product(
            batches, request.modes, request.devices, request.variants
        ):
            point = Point.of(model, mode, batch, device, variant.fixes, **request.settings)
            found.setdefault(point.key(), point)
    return list(found.values())


def split_fixes(text: str) -> tuple[str, ...]:
    """The fixes of one `--fix a,b=1,c`, none for "none". Raises UsageError for unknown fixes. A
    comma may also be part of a value: `compile=default,dynamic`."""
    from stepscope.fixes.registry import find_fix

    if text.strip() == NO_FIXES:
        return ()
    found: list[str] = []
    for piece in (part.strip() for part in text.split(",")):
        if not piece:
            raise UsageError(f"--fix {text!r} has an empty name: --fix amp=bf16,channels_last")
        name, equals, value = found[-1].partition("=") if found else ("", "", "")
        fix = find_fix(name) if equals else None
        if fix is not None and f"{value},{piece}" in fix.values:
            found[-1] += f",{piece}"
        elif piece == NO_FIXES:
            raise UsageError(f"--fix {text}: none cannot be combined")
        else:
            found.append(piece)
    return ordered_fixes(found)


def ordered_fixes(fixes: Iterable[str]) -> tuple[str, ...]:
    """Checked fixes in the order they apply. Raises UsageError."""
    from stepscope.fixes.registry import in_order, parse_fixes

    asked = list(fixes)
    parse_fixes(asked)
    return in_order(asked)


def variant_label(fixes: Sequence[str]) -> str:
    """A variant's name, as `--fix` takes it."""
    return ",".join(fixes) or NO_FIXES


def fix_variants(texts: Iterable[str]) -> tuple[Variant, ...]:
    """One variant per `--fix`, without duplicates; the baseline if there is none."""
    found = dict.fromkeys(split_fixes(text) for text in texts) or {(): None}
    return tuple(Variant(variant_label(fixes), fixes) for fixes in found)


def ablation_variants(text: str) -> tuple[Variant, ...]:
    """The variants of an ablation: no fix, each fix alone, the first ones up to all, and all but
    each. Each combination occurs once, with all its roles: "none", "alone", "cumulative", "left
    out". Fixes add up in the given order; each variant applies them in its own order."""
    asked = ablation_fixes(text)
    parts: list[tuple[str, tuple[str, ...]]] = [("none", ())]
    parts += [("alone", (one,)) for one in asked]
    parts += [("cumulative", asked[: count + 1]) for count in range(len(asked))]
    parts += [("left out", tuple(f for f in asked if f != one)) for one in asked]
    roles: dict[tuple[str, ...], list[str]] = {}
    for role, fixes in parts:
        roles.setdefault(ordered_fixes(fixes), []).append(role)
    return tuple(
        Variant(variant_label(fixes), fixes, tuple(dict.fromkeys(played)))
        for fixes, played in roles.items()
    )


def ablation_fixes(text: str) -> tuple[str, ...]:
    """The fixes of an ablation, in the order of the list, in which they add up. Raises
    UsageError."""
    checked = split_fixes(text)
    if len(checked) < 2:
        raise UsageError(f"--ablate {text}: give two fixes or more, as in amp=bf16,channels_last")
    return tuple(sorted(checked, key=lambda one: f",{text.replace(' ', '')},".index(f",{one},")))
