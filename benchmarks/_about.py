"""What every result says of its making: where, when, with what and how.

Nothing in it names this very machine.
"""

import json
import platform
import shlex
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).resolve().parent.parent / "src"
_KEPT = ("cpu", "memory", "driver", "system", "torch")


def about(
    schema: str, program: str, spelt: Callable[[str], str] = str, device: str | None = None
) -> dict[str, Any]:
    """The head of a result; `spelt` writes an argument of the command without what is private."""
    from msgspec import to_builtins

    import stepscope
    from stepscope.hardware.machine import describe_machine
    from stepscope.store.source import git_commit

    machine = to_builtins(describe_machine())
    gpus = [{k: v for k, v in gpu.items() if k != "uuid"} for gpu in machine["gpus"]]
    words = ["python", f"benchmarks/{program}", *map(spelt, _without_out(sys.argv[1:]))]
    return {
        "schema": schema,
        "date": datetime.now(UTC).date().isoformat(),
        "command": shlex.join(words),
        "device": device,
        "machine": {**{key: machine[key] for key in _KEPT}, "gpus": gpus},
        "versions": {
            "python": platform.python_version(),
            "torch": (machine["torch"] or {}).get("version"),
            "stepscope": stepscope.__version__,
            "commit": git_commit(SOURCE),
        },
    }


def kept(earlier: Path, document: dict[str, Any], *parts: str, commands: bool = True) -> None:
    """Let a result keep these parts of the one it takes the place of, and the commands it had."""
    if earlier.exists():
        found = json.loads(earlier.read_text())
        document |= {part: found[part] for part in parts if part in found}
        if commands:
            document["command"] = f"{found['command']}; {document['command']}"


def _without_out(arguments: list[str]) -> list[str]:
    """The command's arguments but for where the results went, which is this machine's own."""
    if "--out" not in arguments:
        return arguments
    at = arguments.index("--out")
    return arguments[:at] + arguments[at + 2 :]
