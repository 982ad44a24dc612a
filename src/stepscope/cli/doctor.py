"""`stepscope doctor`: what this machine is, what can be measured on it, and its ceilings."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead.")
@click.option("--refresh", is_flag=True, help="Measure the ceilings again.")
@click.option("--no-measure", is_flag=True, help="Show only what was measured before.")
def doctor(as_json: bool, refresh: bool, no_measure: bool) -> None:
    """Say what this machine is, what can be measured on it, and how fast it can be."""
    if refresh and no_measure:
        raise click.UsageError("--refresh and --no-measure exclude each other.")
    document = _document(refresh, no_measure)
    if as_json:
        import json

        click.echo(json.dumps(document, indent=2))
    else:
        _print(document)


def _document(refresh: bool, no_measure: bool) -> dict[str, Any]:
    import os
    from dataclasses import asdict

    from stepscope.hardware.capabilities import capabilities, cautions
    from stepscope.hardware.ceiling_cache import cache_file, load_ceilings
    from stepscope.hardware.ceilings import device_key
    from stepscope.hardware.gpus import visible_gpu_index
    from stepscope.hardware.machine import describe_machine

    machine = describe_machine()
    gpu = visible_gpu_index(os.environ)
    has_cuda = gpu is not None and machine["torch"] and machine["torch"]["cuda"]
    device = "cuda" if has_cuda else "cpu"
    key = device_key(device, gpu)
    ceilings, problem = None if refresh else load_ceilings(key), None
    if ceilings is None and not no_measure:
        ceilings, problem = _measure(device, key)
    return {
        "schema": 1,
        "machine": machine,
        "can_measure": [asdict(capability) for capability in capabilities(machine)],
        "ceilings": ceilings,
        "cautions": cautions(machine, ceilings),
        "problem": problem,
        "cache": str(cache_file(key)),
    }


def _measure(device: str, key: str) -> tuple[dict[str, Any] | None, str | None]:
    """(what was measured, what went wrong), either of them None."""
    from stepscope.hardware.ceiling_cache import save_ceilings
    from stepscope.hardware.ceilings import measure_ceilings
    from stepscope.record.errors import StepscopeError

    try:
        with _progress() as listener:
            document = measure_ceilings(device, key, listener)
    except StepscopeError as error:
        return None, str(error)
    try:
        save_ceilings(document)
    except OSError as error:
        return document, f"not kept for next time: {error}"
    return document, None


def _print(document: dict[str, Any]) -> None:
    from rich.console import Console

    from stepscope.report.render.terminal.doctor import doctor_screen

    console = Console(highlight=False, emoji=False)
    ascii_only = not console.encoding.lower().startswith("utf")
    console.print(doctor_screen(document, ascii_only))


@contextmanager
def _progress() -> Iterator[Callable[[dict[str, Any]], None]]:
    """Hears the lines of a measurement: a bar on a terminal, plain lines elsewhere, on stderr."""
    import sys

    if not sys.stderr.isatty():
        click.echo("Measuring what this machine can do; this takes some seconds.", err=True)
        yield _say
        return
    from rich.console import Console
    from rich.progress import Progress

    from stepscope.hardware.ceiling_cache import CEILING_NAMES

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("measuring: starting torch", total=None)
        ahead: list[str] = []

        def hear(line: dict[str, Any]) -> None:
            if "plan" in line:
                ahead.extend(line["plan"])
                bar.update(task, total=len(ahead))
            else:
                ahead.pop(0)
                bar.advance(task)
            if ahead:
                bar.update(task, description=f"measuring {CEILING_NAMES[ahead[0]].words:<21}")

        yield hear


def _say(line: dict[str, Any]) -> None:
    from stepscope.hardware.ceiling_cache import CEILING_NAMES, format_quantity

    if "measured" in line:
        name = line["measured"]
        number, unit = format_quantity(line["result"]["value"], CEILING_NAMES[name].unit)
        click.echo(f"  {CEILING_NAMES[name].words}: {number} {unit}", err=True)
    elif "failed" in line:
        click.echo(f"  {CEILING_NAMES[line['failed']].words}: {line['why']}", err=True)
