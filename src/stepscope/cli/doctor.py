"""`stepscope doctor`: what this machine is, what can be measured on it, and its ceilings."""

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from stepscope.cli.progress import Progress, progress

if TYPE_CHECKING:
    from stepscope.hardware.ceiling_cache import DeviceCeilings
    from stepscope.hardware.ceilings import Line, Listener


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead.")
@click.option("--refresh", is_flag=True, help="Measure the ceilings again.")
@click.option("--no-measure", is_flag=True, help="Show only what is already measured.")
def doctor(as_json: bool, refresh: bool, no_measure: bool) -> None:
    """Show what this machine is, what can be measured on it, and how fast it can be."""
    if refresh and no_measure:
        raise click.UsageError("--refresh and --no-measure exclude each other.")
    document = _document(refresh, no_measure)
    if as_json:
        click.echo(json.dumps(document, indent=2))
    else:
        from stepscope.report.render.terminal.story import print_story
        from stepscope.report.story.machine import machine_story

        print_story(machine_story(document), sys.stdout)


def _document(refresh: bool, no_measure: bool) -> dict[str, Any]:
    import os

    from msgspec import to_builtins

    from stepscope.hardware.capabilities import capabilities, cautions
    from stepscope.hardware.ceiling_cache import cache_file, load_ceilings
    from stepscope.hardware.ceilings import device_key
    from stepscope.hardware.gpus import visible_gpu_index
    from stepscope.hardware.machine import describe_machine
    from stepscope.probe.guard.walls import find_wall

    machine = describe_machine()
    gpu = visible_gpu_index(os.environ)
    has_cuda = gpu is not None and machine.torch and machine.torch.cuda
    device = "cuda" if has_cuda else "cpu"
    key = device_key(device, gpu)
    ceilings, problem = None if refresh else load_ceilings(key), None
    if ceilings is None and not no_measure:
        ceilings, problem = _measure(device, key)
    return {
        "schema": 1,
        "machine": to_builtins(machine),
        "wall": find_wall(),
        "can_measure": to_builtins(capabilities(machine)),
        "ceilings": to_builtins(ceilings),
        "cautions": cautions(machine, ceilings),
        "problem": problem,
        "cache": str(cache_file(key)),
    }


def _measure(device: str, key: str) -> "tuple[DeviceCeilings | None, str | None]":
    """(what was measured, what went wrong); one of them is None."""
    from stepscope.hardware.ceiling_cache import save_ceilings
    from stepscope.hardware.ceilings import measure_ceilings
    from stepscope.record.errors import StepscopeError

    try:
        with progress(label="starting torch") as shown:
            shown.line("Measuring this machine's ceilings; this takes some seconds.")
            document = measure_ceilings(device, key, _teller(shown))
    except StepscopeError as error:
        return None, str(error)
    try:
        save_ceilings(document)
    except OSError as error:
        return document, f"not cached: {error}"
    return document, None


def _teller(shown: Progress) -> "Listener":
    """A callback that shows a measurement's lines as progress."""
    from stepscope.hardware.ceiling_cache import CEILING_NAMES, format_quantity
    from stepscope.hardware.ceilings import Measured, Plan

    planned: list[str] = []
    done: list[str] = []

    def tell(line: "Line") -> None:
        if isinstance(line, Plan):
            planned.extend(line.names)
        else:
            name = CEILING_NAMES[line.name]
            if isinstance(line, Measured):
                told = " ".join(format_quantity(line.result.value, name.unit))
            else:
                told = line.why
            shown.line(f"  {name.words}: {told}")
            done.append(line.name)
        if len(done) < len(planned):
            label = f"measuring {CEILING_NAMES[planned[len(done)]].words}"
            shown.update(label, len(done), len(planned))

    return tell
