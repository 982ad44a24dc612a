"""Fixes in the program's process: installed once torch is there, and asked when it fails."""

import sys
from collections.abc import Iterable
from dataclasses import replace
from types import TracebackType
from typing import Any

from stepscope.fixes.base import Fix, FixContext
from stepscope.fixes.inspect.user_code import raise_location
from stepscope.fixes.lazy import torch
from stepscope.fixes.registry import parse_fixes
from stepscope.probe.points.seams import Seams
from stepscope.record.fix import INSTALL_FAILED, NO_CUDA, NotApplied
from stepscope.record.fix_words import sentence


def apply_fixes(asked: Iterable[str], seams: Seams) -> None:
    """Install every fix. One that fails reports it, and the program runs without it."""
    placed: list[tuple[Fix, FixContext]] = []
    for fix, value in parse_fixes(asked):
        context = FixContext(fix, seams)
        seams.core.facts.write("fix", name=fix.name, state="asked", value=value, text=fix.missing)
        try:
            if fix.needs == "cuda" and not torch.cuda.device_count():
                context.not_applied(NotApplied(NO_CUDA))
                continue
            fix.install(value, context)
        except Exception as problem:
            context.not_applied(NotApplied(INSTALL_FAILED, error=repr(problem)))
            continue
        placed.append((fix, context))

    def hook(call: Any, kind: Any, error: BaseException, trace: TracebackType | None) -> None:
        """End the program with one line if a fix caused its exception."""
        where, line = raise_location(trace)
        for fix, context in placed:
            try:
                record = fix.explain(error, line)
            except Exception:
                record = None
            if record is not None:
                record = record if record.place else replace(record, place=where)
                context.not_applied(record)
                print(f"stepscope: {fix.name}: {sentence(record)}", file=sys.stderr)
                return
        call(kind, error, trace)

    seams.around(sys, "excepthook", hook)
