"""Options that stand in `[tool.stepscope]` of the nearest pyproject.toml."""

import tomllib
from pathlib import Path
from typing import Any

from stepscope.record.errors import UsageError


def defaults(cwd: Path | None = None) -> dict[str, Any]:
    """Option defaults per command: `[tool.stepscope.run] window = 4`. Empty when there are none."""
    here = (cwd or Path.cwd()).absolute()
    for folder in (here, *here.parents):
        path = folder / "pyproject.toml"
        if path.is_file():
            return _read(path)
    return {}


def _read(path: Path) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            tool = tomllib.load(file).get("tool", {})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise UsageError(f"{path} is not TOML: {problem}") from None
    except OSError:
        return {}
    table = tool.get("stepscope", {}) if isinstance(tool, dict) else None
    if not isinstance(table, dict) or not all(isinstance(v, dict) for v in table.values()):
        raise UsageError(f"{path}: [tool.stepscope] holds one table per command")
    return {
        command: {name.replace("-", "_"): value for name, value in options.items()}
        for command, options in table.items()
    }
