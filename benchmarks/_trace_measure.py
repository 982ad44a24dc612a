"""Starting a contender, watching its time and memory, and stopping it at its limit."""

import json
import os
import select
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parent / "src"
_EVERY_S = 0.05


def measure(python: str, name: str, path: Path, limit_s: float) -> dict[str, Any]:
    """One reading: `wall_s` of the whole process, `peak_bytes`, and what the child said.

    `failed` holds the last line of its errors, `over_s` the limit it went beyond.
    """
    command = [python, str(HERE / "_trace_child.py"), name, str(path)]
    # Each contender's interpreter brings its own packages; only ours comes from this checkout.
    # With compiled files, as users have them: without, most of a short reading is compiling.
    left_out = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")
    environment = {k: v for k, v in os.environ.items() if k not in left_out}
    if name in ("stepscope", "command"):
        environment["PYTHONPATH"] = str(SOURCE)
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as errors:
        began = time.perf_counter()
        child = subprocess.Popen(
            command, stdout=said, stderr=errors, env=environment, start_new_session=True
        )
        sampled, over = _watch(child, began, limit_s)
        wall_s = time.perf_counter() - began
        said.seek(0), errors.seek(0)
        text, complaint = said.read().decode(), errors.read().decode("utf-8", "replace")
    reading: dict[str, Any] = {"contender": name, "wall_s": wall_s, "sampled_bytes": sampled}
    if over:
        return reading | {"over_s": limit_s, "peak_bytes": sampled}
    if child.returncode:
        return reading | {"failed": _last_line(complaint) or f"exit {child.returncode}"}
    answer: dict[str, Any] = json.loads(text.splitlines()[-1])
    if "missing" not in answer:
        reading["peak_bytes"] = max(sampled, answer["maxrss_bytes"])
    if name == "command":
        reading["wall_s"] = _command_s(python, path, environment)
    return reading | answer


def _command_s(python: str, path: Path, environment: dict[str, str]) -> float:
    """Seconds of `stepscope analyze`, as its console script runs it."""
    script = "from stepscope.cli.main import main; main()"
    began = time.perf_counter()
    subprocess.run(
        [python, "-c", script, "analyze", str(path)],
        stdout=subprocess.DEVNULL,
        env=environment,
        check=True,
    )
    return time.perf_counter() - began


def _watch(child: subprocess.Popen[bytes], began: float, limit_s: float) -> tuple[int, bool]:
    """The largest memory of the child and all its children together, and whether it was ended."""
    process, peak = psutil.Process(child.pid), 0
    ended = os.pidfd_open(child.pid)  # wakes at once, where Popen.wait would sleep between looks
    try:
        while not select.select([ended], [], [], _EVERY_S)[0]:
            peak = max(peak, _tree_bytes(process))
            if time.perf_counter() - began > limit_s:
                os.killpg(child.pid, signal.SIGKILL)
                return peak, True
        return peak, False
    finally:
        child.wait()
        os.close(ended)


def _tree_bytes(process: psutil.Process) -> int:
    total = 0
    try:
        for one in (process, *process.children(recursive=True)):
            total += one.memory_info().rss
    except psutil.Error:  # it has just ended
        pass
    return total


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""
