"""`stepscope bench --list`: the built-in models."""

import json
import sys
from dataclasses import asdict
from itertools import zip_longest
from shutil import get_terminal_size
from textwrap import wrap


def print_list(as_json: bool) -> None:
    """A table, or a JSON list."""
    from stepscope.workloads.catalogue import WORKLOADS

    every = list(WORKLOADS.values())
    if as_json:
        json.dump([asdict(one) for one in every], sys.stdout, indent=1)
        print()
        return
    wide = max(len(one.name) for one in every)
    print(f"{'model':<{wide}}  {'params':>7}  {'batch':>5}  {'modes':<15}  about")
    for one in every:
        left = f"{one.name:<{wide}}  {_count(one.parameters):>7}  {one.batch:>5}  "
        modes = _column(", ".join(one.modes), 15)
        about = _column(one.about, max(20, get_terminal_size().columns - len(left) - 17))
        for number, (first, second) in enumerate(zip_longest(modes, about, fillvalue="")):
            print(f"{'' if number else left:<{len(left)}}{first:<15}  {second}".rstrip())
    print("\nalso: file.py:factory, module:factory, torchvision:NAME, timm:NAME, hf:NAME")


def _column(text: str, width: int) -> list[str]:
    return wrap(text, width, break_on_hyphens=False)


def _count(parameters: int | None) -> str:
    if parameters is None:
        return "–"
    return f"{parameters / 1e6:,.1f} M" if parameters >= 1e5 else f"{parameters / 1e3:,.0f} k"
