"""`stepscope bench kernels`: the heaviest kernels of a model, beside what they could be."""

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import click

_ARGUMENTS = "stepscope.bench.arguments"


class _Kernels(click.Command):
    """Keeps its arguments for the document."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_ARGUMENTS] = ["kernels", *args]
        return super().parse_args(ctx, args)


@click.command(cls=_Kernels)
@click.argument("model")
@click.option("--mode", type=click.Choice(("train", "infer")), help="What it does [train].")
@click.option("--batch", type=click.IntRange(1), help="Samples a step [the model's own].")
@click.option("--device", type=click.Choice(("cpu", "cuda")), help="[the GPU if there is one]")
@click.option("--fix", "fixes", multiple=True, metavar="F,…", help="Apply fixes (stepscope fixes).")
@click.option("--size", type=click.IntRange(1), help="Pixels of an image's side.")
@click.option("--length", type=click.IntRange(1), help="Tokens or characters of a sample.")
@click.option("--top", type=click.IntRange(1, 100), default=10, help="How many are shown [10].")
@click.option(
    "--timeout", type=click.FloatRange(1), default=300.0, help="Seconds for each recording [300]."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@click.option("--markdown", type=click.Path(path_type=Path), help="The tables, in this file.")
def kernels(
    model: str,
    mode: str | None,
    batch: int | None,
    device: str | None,
    fixes: tuple[str, ...],
    top: int,
    timeout: float,
    as_json: bool,
    markdown: Path | None,
    **settings: Any,
) -> None:
    """Record some steps of MODEL and hold its heaviest operators against the device's ceilings.

    With Nsight Compute (ncu) on the PATH its counters stand beside the model of what each operator
    has to do.
    """
    from stepscope.cli.bench_loader import writable
    from stepscope.report.bench_kernels import markdown_kernels, print_kernels

    writable(markdown)
    subject = _subject(model, mode, batch, device, fixes, settings)
    document = _studied(subject, top, timeout)
    if markdown is not None:
        markdown.write_text(markdown_kernels(document))
    if as_json:
        json.dump(document, sys.stdout, indent=1, allow_nan=False)
        print()
    else:
        print_kernels(document, sys.stdout)


def _subject(
    model: str,
    mode: str | None,
    batch: int | None,
    device: str | None,
    fixes: tuple[str, ...],
    settings: dict[str, Any],
) -> Any:
    """What is to be studied, checked. Raises UsageError."""
    from stepscope.bench.ask import check_needs, devices_of, modes_of
    from stepscope.bench.grid import label, split_fixes
    from stepscope.bench.kernels_record import Subject
    from stepscope.bench.request import Variant
    from stepscope.workloads.catalogue import find

    workload = find(model)
    modes = modes_of([model], mode)
    devices = devices_of(device)
    asked = split_fixes(",".join(fixes)) if fixes else ()
    check_needs([Variant(label(asked), asked)], devices)
    given = {name: value for name, value in settings.items() if value is not None}
    return Subject(model, modes[0], batch or workload.batch, devices[0], asked, given)


def _studied(subject: Any, top: int, timeout: float) -> dict[str, Any]:
    from datetime import UTC, datetime
    from tempfile import TemporaryDirectory

    from stepscope.bench.kernels import study
    from stepscope.bench.kernels_document import ceilings_of, document
    from stepscope.bench.kernels_record import STEPS, counted, record
    from stepscope.bench.kernels_roofline import against, heaviest_names
    from stepscope.cli.bench_progress import say
    from stepscope.trace.kineto import read_kineto

    started = datetime.now(UTC).isoformat(timespec="seconds")
    with TemporaryDirectory(prefix="stepscope-") as folder:
        say(f"recording {STEPS} steps of {subject.model}")
        trace, fixes = record(subject, Path(folder) / "recorded", timeout)
        timeline = read_kineto(trace)
        limits = ceilings_of(timeline, subject.device)
        plain = against(timeline, ceilings=limits, steps=STEPS)
        names = sorted(heaviest_names(plain, top))
        count = counted(subject, names, Path(folder) / "counted", timeout, say)
    found = against(timeline, count.counters, ceilings=limits, steps=STEPS)
    arguments = click.get_current_context().meta[_ARGUMENTS]
    command = shlex.join(["stepscope", "bench", *arguments])
    return document(subject, study(found, STEPS, top), count, fixes, command, started)
