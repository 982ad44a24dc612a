"""How fast traces are read, and in how much memory: stepscope beside HTA, TraceLens and parsers.

python benchmarks/trace_reading.py --python hta=VENV/bin/python    measure, write, print the table
python benchmarks/trace_reading.py --table FILE.json               print the table of earlier ones

Each reader loads a real trace, repeated until it is large, and computes its breakdown, kernel table
and idle time. Then stepscope alone reads a still larger one, and `stepscope analyze` is measured
as a whole on one as it was recorded, by phase, beside HTA.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _about import about
from _trace_goals import goals_of
from _trace_measure import HERE, SOURCE, measure
from _trace_options import COMMAND_MEGABYTES, COMMAND_SOURCE, arguments, without_folders
from _trace_table import table

TRACES = HERE.parent / "tests" / "data" / "traces"
SMALL = TRACES / "resnet18_b32_h200.json.gz"


def main() -> None:
    sys.path.insert(0, str(SOURCE))  # this checkout is measured, installed or not
    options = arguments(__doc__ or "")
    if options.table:
        print(table(json.loads(options.table.read_text())), end="")
        return
    document = described(options)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    if options.command_only and options.out.exists():  # the readers' stay
        document["cases"] = [
            one
            for one in json.loads(options.out.read_text())["cases"]
            if one["readings"][0]["contender"] != "command"
        ]
    for case in cases(options):
        document["cases"].append(case)
        document["versions"]["readers"].update(_versions(case["readings"]))
        options.out.write_text(json.dumps(document, indent=1) + "\n")
    print(table(document), end="")


def cases(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Each source in each format by all readers, then the large one by stepscope alone, then the
    command."""
    hta = [name for name in options.contenders if name == "hta"]
    _warm_up(options, ["command", *options.contenders])
    yield from compared(options, COMMAND_SOURCE, COMMAND_MEGABYTES, ["command", *hta])
    if options.command_only:
        return
    for source in options.sources:
        yield from compared(options, source, options.megabytes, options.contenders)
    if options.large_megabytes and "stepscope" in options.contenders:
        yield from compared(options, options.sources[0], options.large_megabytes, ["stepscope"])


def compared(
    options: argparse.Namespace, source: str, megabytes: float, names: list[str]
) -> Iterator[dict[str, Any]]:
    """One trace in each format."""
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        plain = Path(folder) / "trace.json"
        made = _made(source, plain, megabytes, "gzip" in options.formats)
        for format_ in options.formats:
            path = plain if format_ == "plain" else plain.with_name("trace.json.gz")
            case = {
                "source": source,
                "repetitions": made["repetitions"],
                "format": format_,
                "json_bytes": plain.stat().st_size,
                "file_bytes": path.stat().st_size,
                "alone": names == ["stepscope"],
                "rounds": options.rounds,
                "readings": list(readings(options, path, names)),
            }
            yield case | {"goals": goals_of(case)}


def readings(options: argparse.Namespace, path: Path, names: list[str]) -> Iterator[dict[str, Any]]:
    """In each round every reader once, in an order that turns; one that cannot is not asked again.

    The file is read beforehand, so that none of them waits for the disk.
    """
    left = list(names)
    for number in range(options.rounds):
        for name in left[number % len(left) :] + left[: number % len(left)] if left else []:
            _into_cache(path)
            reading = measure(options.python.get(name, sys.executable), name, path, options.limit)
            shown = f"{reading['wall_s']:6.1f} s" if "peak_bytes" in reading else "  none"
            print(f"{path.name:14} round {number + 1} {name:10} {shown}", file=sys.stderr)
            yield {"round": number + 1, **reading}
            if not {"missing", "failed", "over_s"}.isdisjoint(reading):
                left.remove(name)


def _warm_up(options: argparse.Namespace, names: list[str]) -> None:
    """A reading of a small trace by each, not counted: it leaves compiled files behind."""
    for name in names:
        measure(options.python.get(name, sys.executable), name, SMALL, options.limit)


def _made(source: str, out: Path, megabytes: float, packed: bool) -> dict[str, Any]:
    """Made in a process of its own: what this one had resident would count in its children's."""
    command = [sys.executable, str(HERE / "_trace_big.py"), str(TRACES / f"{source}.json.gz")]
    command += [str(out), str(megabytes), *(["--gzip"] if packed else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"no trace could be made:\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _into_cache(path: Path) -> None:
    with path.open("rb") as file:
        while file.read(1 << 24):
            pass


def _versions(found: list[dict[str, Any]]) -> dict[str, dict[str, str]]:
    return {
        reading["contender"]: {"python": reading["python"], **reading.get("versions", {})}
        for reading in found
        if "python" in reading
    }


def described(options: argparse.Namespace) -> dict[str, Any]:
    """The head of the results."""
    head = about("stepscope.trace_reading/1", "trace_reading.py", without_folders)
    head["versions"]["readers"] = {}
    return head | {"limit_s": options.limit, "cases": []}


if __name__ == "__main__":
    try:
        main()
    except RuntimeError as problem:
        sys.exit(str(problem))
