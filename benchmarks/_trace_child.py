"""One contender reading one trace, in a process of its own: prints what it found as JSON.

python benchmarks/_trace_child.py CONTENDER FILE
"""

import importlib
import json
import platform
import resource
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

CONTENDERS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "stepscope": ("_trace_stepscope", "Stepscope", ()),
    "command": ("_trace_command", "Command", ()),
    "hta": ("_trace_hta", "Hta", ()),
    "tracelens": ("_trace_tracelens", "TraceLens", ()),
    "json": ("_trace_parsers", "Parser", ("json",)),
    "orjson": ("_trace_parsers", "Parser", ("orjson",)),
    "simdjson": ("_trace_parsers", "Parser", ("simdjson",)),
}


def main() -> None:
    name, path = sys.argv[1], Path(sys.argv[2])
    print(json.dumps(read(name, path)), flush=True)


def read(name: str, path: Path) -> dict[str, Any]:
    """Seconds for importing, loading and analysing; or `missing`, where it is not installed."""
    module, made, arguments = CONTENDERS[name]
    clock = [time.perf_counter()]
    try:
        contender = getattr(importlib.import_module(module), made)(*arguments)
    except ModuleNotFoundError as problem:
        if (problem.name or "").startswith("stepscope."):
            raise  # that is not a package somebody could install
        return {"missing": str(problem), "python": platform.python_version()}
    clock.append(time.perf_counter())
    loaded = contender.load(path)
    clock.append(time.perf_counter())
    found = contender.analyse(loaded)
    clock.append(time.perf_counter())
    own, children = (
        resource.getrusage(who).ru_maxrss * 1024
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return {
        "import_s": clock[1] - clock[0],
        "load_s": clock[2] - clock[1],
        "analyse_s": clock[3] - clock[2],
        "maxrss_bytes": max(own, children),
        "found": found,
        "python": platform.python_version(),
        "versions": versions(contender.packages),
    }


def versions(packages: tuple[str, ...]) -> dict[str, str]:
    """Of those packages that are installed."""
    known = {}
    for package in packages:
        try:
            known[package] = version(package)
        except PackageNotFoundError:
            continue
    return known


if __name__ == "__main__":
    main()
