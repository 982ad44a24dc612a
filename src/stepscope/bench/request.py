"""What `stepscope bench` was asked to measure."""

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_NOT_MEASURED = ("timeout_s", "price_per_hour", "carbon_intensity")


@dataclass(frozen=True, slots=True)
class Variant:
    """Fixes measured together; () are none. `roles`: its parts in an ablation."""

    label: str
    fixes: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Request:
    """A grid: every model at every batch, in every mode, on every device, with every variant."""

    models: tuple[str, ...]
    modes: tuple[str, ...]
    devices: tuple[str, ...]
    batches: tuple[int, ...] | None = None
    """None: each model's own."""
    variants: tuple[Variant, ...] = (Variant("none"),)
    ablate: tuple[str, ...] = ()
    """The fixes of an ablation, in the order they add up; () where there is none."""
    settings: tuple[tuple[str, Any], ...] = ()
    rounds: int = 3
    """Processes per point."""
    timeout_s: float = 1800.0
    """Of one process."""
    price_per_hour: float | None = None
    carbon_intensity: float | None = None
    """Grams of CO₂ per kWh."""
    study: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Ready for JSON."""
        data = asdict(self)
        data["settings"] = dict(self.settings)
        data["variants"] = [
            {"label": v.label, "fixes": list(v.fixes), "roles": list(v.roles)}
            for v in self.variants
        ]
        for name in ("models", "modes", "devices", "batches", "ablate"):
            data[name] = None if data[name] is None else list(data[name])
        return data

    def identity(self) -> dict[str, Any]:
        """What its measurements depend on: the request without prices and limits, and the text
        of the user's own model files."""
        asked = {k: v for k, v in self.to_json().items() if k not in _NOT_MEASURED}
        return {**asked, "files": _digests(self.models)}


def _digests(models: tuple[str, ...]) -> Mapping[str, str]:
    """A digest of each file that a model is made by."""
    found = {}
    for model in models:
        name = model.rpartition(":")[0]
        if name.endswith(".py") and Path(name).is_file():
            found[name] = hashlib.sha256(Path(name).read_bytes()).hexdigest()[:16]
    return found
