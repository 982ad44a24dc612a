"""The source lines that own a run's memory, as `--memory` recorded them."""

import json
from pathlib import Path

from stepscope.record.errors import BrokenRun
from stepscope.record.memory import CPU_LINES, CUDA_LINES, MemoryLines, memory_lines

_FILES = {"cuda": CUDA_LINES, "cpu": CPU_LINES}


def owners(folder: Path, device: str | None = None) -> MemoryLines | None:
    """Owners of the peak and of growth on "cuda" or "cpu"; by default CUDA's where there are any.

    None when `--memory` recorded nothing there; BrokenRun when it cannot be read.
    """
    for kind in [device] if device else ["cuda", "cpu"]:
        path = folder / _FILES[kind]
        try:
            return memory_lines(json.loads(path.read_text()))
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            raise BrokenRun(f"{path} cannot be read: {error}") from None
    return None
