"""The commit a program stood at."""

import subprocess
from pathlib import Path


def commit(cwd: Path) -> str | None:
    """The current commit, with `+` when files differ from it; None outside a repository."""
    found = _git(cwd, "rev-parse", "HEAD")
    if not found:
        return None
    return found[:12] + ("+" if _git(cwd, "status", "--porcelain", "-uno") else "")


def _git(cwd: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=cwd, capture_output=True, text=True, timeout=2, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
