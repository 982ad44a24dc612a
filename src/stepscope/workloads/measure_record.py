"""What a program has measured of itself: one JSON object, written whole or not at all."""

import json
from math import isfinite
from pathlib import Path
from typing import Any

SCHEMA = "stepscope.measured/1"
_KEYS = (
    *("model", "mode", "batch", "device", "device_name", "torch", "parameters"),
    *("flops_per_sample", "flops_why_not", "arithmetic", "clock", "tokens_per_sample"),
    *("warmup", "first_calls_extra_s", "started_ns", "ended_ns", "elapsed_s", "calls", "samples"),
    *("series_ms", "peak_memory_bytes", "reserved_memory_bytes"),
)
_OF_MODE = {
    "train": (
        *("losses", "scores", "score_name", "final_loss", "final_score"),
        *("steps", "train_samples", "time_to_score_s"),
    ),
    "infer": ("throughput_ms",),
    "generate": ("prompt", "new_tokens", "first_token_ms", "token_ms", "tokens_per_s"),
}


class Measured:
    """Facts as they become known; None until then."""

    def __init__(self, mode: str) -> None:
        keys = (*_KEYS, *_OF_MODE[mode])
        self.facts: dict[str, Any] = {"schema": SCHEMA, **dict.fromkeys(keys)}
        self.facts["mode"] = mode
        self.notes: list[str] = []
        self.device: Any = None
        """The torch.device in use, once it is chosen."""

    def say(self, **facts: Any) -> None:
        """Facts under their names in the record. Raises KeyError for others."""
        unknown = facts.keys() - self.facts.keys()
        if unknown:
            raise KeyError(f"a measured record has no {', '.join(sorted(unknown))}")
        self.facts.update(facts)

    def write(self, path: Path, error: dict[str, str] | None) -> None:
        """Write it; `error` is what ended the program too soon."""
        document = _plain({**self.facts, "notes": self.notes, "error": error})
        part = path.with_name(f"{path.name}.part")
        try:
            part.write_text(json.dumps(document, allow_nan=False) + "\n")
            part.replace(path)
        except OSError:
            part.unlink(missing_ok=True)
            raise


def _plain(value: Any) -> Any:
    """A value without numbers that JSON does not have."""
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
