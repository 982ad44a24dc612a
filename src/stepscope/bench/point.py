"""One point of a grid: a model in one mode, at one batch, on one device, with some fixes."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

MODES: Final = ("train", "infer", "generate")
_EVERYWHERE = (
    "size",
    "classes",
    "length",
    "steps",
    "seconds",
    "seed",
    "memory_limit_gib",
    "threads",
)
_DATA = (
    "data",
    "samples",
    "workers",
    "decode_ms",
    "latency_ms",
    "resize",
    "disk_mb_s",
)
SETTINGS: Final[Mapping[str, frozenset[str]]] = {
    "train": frozenset(
        {*_EVERYWHERE, *_DATA, "test_samples", "epochs", "lr", "target_score", "score_every"},
    ),
    "infer": frozenset({*_EVERYWHERE, *_DATA}),
    "generate": frozenset({*_EVERYWHERE, "prompt", "new_tokens"} - {"length"}),
}
"""Which settings a mode's program knows; the option is the same word with dashes."""


@dataclass(frozen=True, slots=True)
class Point:
    """What one process measures. `settings` are pairs in order of name; () fixes are none."""

    model: str
    mode: str
    batch: int
    device: str
    fixes: tuple[str, ...] = ()
    settings: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def of(
        cls,
        model: str,
        mode: str,
        batch: int,
        device: str,
        fixes: tuple[str, ...] = (),
        **settings: Any,
    ) -> Self:
        """A point with those of the settings that its mode knows; None stands for not given."""
        known = SETTINGS[mode]
        kept = {name: value for name, value in settings.items() if name in known}
        pairs = ((name, value) for name, value in sorted(kept.items()) if value is not None)
        return cls(model, mode, batch, device, tuple(fixes), tuple(pairs))

    def key(self) -> str:
        """The point as one stable line of text: equal for equal points, in any process."""
        return json.dumps(list(self.to_json().values()), sort_keys=True, separators=(",", ":"))

    def to_json(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "model": self.model,
            "mode": self.mode,
            "batch": self.batch,
            "device": self.device,
            "fixes": list(self.fixes),
            "settings": dict(self.settings),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The point that `to_json` gave."""
        return cls(
            data["model"],
            data["mode"],
            data["batch"],
            data["device"],
            tuple(data["fixes"]),
            tuple(sorted(data["settings"].items())),
        )

    def command(self, measure_file: Path) -> list[str]:
        """What stands after `python -m` to measure it into a file."""
        words = [f"stepscope.workloads.{self.mode}", "--model", self.model]
        words += ["--batch", str(self.batch), "--device", self.device]
        for name, value in self.settings:
            words += [f"--{name.replace('_', '-')}", str(value)]
        return [*words, "--measure", str(measure_file)]
