"""What benchmarks/trace_reading.py was asked for."""

import argparse
import os
from pathlib import Path

from _trace_child import CONTENDERS

OUT = Path(__file__).resolve().parent / "results" / "trace-reading.json"
SOURCES = ("resnet50_b64_h200", "v100_train_2ranks_rank1")
FORMATS = ("plain", "gzip")
COMMAND_SOURCE, COMMAND_MEGABYTES = SOURCES[1], 50  # as it was recorded, once: 54 MB
READERS = [name for name in CONTENDERS if name != "command"]


def arguments(about: str) -> argparse.Namespace:
    """The options, `python` as a map from reader to interpreter."""
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=float, default=400, help="of the trace [400]")
    parser.add_argument(
        "--large-megabytes", type=float, default=1000, help="of stepscope's own; 0: none [1000]"
    )
    parser.add_argument("--command-only", action="store_true", help="measure no reader")
    parser.add_argument("--rounds", type=int, default=3, help="[3]")
    parser.add_argument("--limit", type=float, default=300, help="seconds for one reading [300]")
    parser.add_argument("--sources", nargs="+", choices=SOURCES, default=list(SOURCES))
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=list(FORMATS))
    parser.add_argument("--contenders", nargs="+", choices=READERS, default=READERS)
    parser.add_argument(
        "--python",
        action="append",
        default=[],
        metavar="[NAME=]PYTHON",
        help="the interpreter of one reader, or of all [this one]",
    )
    parser.add_argument("--folder", type=Path, help="for the traces [the system's temporary one]")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--table", type=Path, metavar="FILE.json", help="only print the table")
    options = parser.parse_args()
    try:
        options.python = interpreters(options.python)
    except ValueError as problem:
        parser.error(str(problem))
    return options


def interpreters(given: list[str]) -> dict[str, str]:
    """From `NAME=PYTHON` and plain `PYTHON`, which stands for every reader not named."""
    everyone = [text for text in given if "=" not in text]
    named = dict(text.split("=", 1) for text in given if "=" in text)
    unknown = sorted(set(named) - set(CONTENDERS))
    if unknown or len(everyone) > 1:
        raise ValueError(f"--python takes one interpreter for all, and NAME=… of {[*CONTENDERS]}")
    return dict.fromkeys(CONTENDERS, everyone[0]) | named if everyone else named


def without_folders(argument: str) -> str:
    """An argument with the folders of an absolute path left out: results name no machine's."""
    name, equals, value = argument.rpartition("=")
    return f"{name}{equals}…/{os.path.basename(value)}" if os.path.isabs(value) else argument
