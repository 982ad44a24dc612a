"""`stepscope bench loader`: which DataLoader settings deliver the most samples."""

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import click

from stepscope.record.errors import UsageError

_ARGUMENTS = "stepscope.bench.arguments"


class _Loader(click.Command):
    """Keeps its arguments, to say how a grid that was stopped goes on."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_ARGUMENTS] = ["loader", *args]
        return super().parse_args(ctx, args)


@click.command(cls=_Loader)
@click.argument("source", metavar="[WORKLOAD|file.py:dataset|module:dataset]", default="resnet18")
@click.option("--batch", default="32,64,128", help="Batch sizes [32,64,128].")
@click.option("--workers", help="Numbers of workers [0 to the cores that may be used].")
@click.option("--pin", default="off,on", help="Pinned memory: off, on [off,on].")
@click.option("--prefetch", default="2,4", help="Batches ahead of each worker [2,4].")
@click.option("--device", type=click.Choice(("auto", "cpu", "cuda")), default="auto")
@click.option("--seconds", type=click.FloatRange(0.1), default=2.0, help="Measured each [2].")
@click.option("--rounds", type=click.IntRange(1), default=1, help="Processes per setting [1].")
@click.option("--samples", type=click.IntRange(1), help="Samples of a workload [2048].")
@click.option("--size", type=click.IntRange(1), help="Pixels of a workload's images.")
@click.option("--decode-ms", type=click.FloatRange(0), help="Unpacking of each sample.")
@click.option("--latency-ms", type=click.FloatRange(0), help="Waiting for each sample.")
@click.option("--resize", type=click.IntRange(1), help="Pixels of stored images, to be resized.")
@click.option("--disk-mb-s", type=click.FloatRange(0, min_open=True), help="Rate of a slow disk.")
@click.option("--timeout", type=click.FloatRange(1), default=300.0, help="Seconds each [300].")
@click.option("--out", type=click.Path(path_type=Path), help="Folder [.stepscope/bench-<id>].")
@click.option("--force", is_flag=True, help="Replace what --out holds.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@click.option("--csv", "csv_file", type=click.Path(path_type=Path), help="A row per setting.")
@click.option("--markdown", type=click.Path(path_type=Path), help="The table, in this file.")
def loader(
    source: str,
    batch: str,
    workers: str | None,
    pin: str,
    prefetch: str,
    device: str,
    seconds: float,
    rounds: int,
    timeout: float,
    out: Path | None,
    force: bool,
    as_json: bool,
    csv_file: Path | None,
    markdown: Path | None,
    **data: Any,
) -> None:
    """Measure a DataLoader over SOURCE with every setting, each in a process of its own.

    SOURCE is a workload (stepscope bench --list), or a Dataset in a file or module of yours, or
    what makes one. Lists separated by commas make a grid.
    """
    from stepscope.bench.ask import batches_of
    from stepscope.bench.loader import ask, usual_workers
    from stepscope.hardware.machine import describe_cpu
    from stepscope.workloads.catalogue import find

    writable(csv_file, markdown)
    given = [name for name, value in data.items() if value is not None]
    if find(source).task == "given" and given:
        option = given[0].replace("_", "-")
        raise UsageError(f"--{option} is for built-in workloads: {source} is your own data set")
    cores = describe_cpu()["usable_cores"]
    request = ask(
        source,
        _device(device),
        batches_of(batch),
        _numbers("--workers", workers, 0) if workers else usual_workers(cores),
        _switches(pin),
        _numbers("--prefetch", prefetch, 1),
        rounds,
        timeout,
        seconds=seconds,
        **data,
    )
    arguments = click.get_current_context().meta[_ARGUMENTS]
    document = _measured(request, cores, out, force, arguments)
    _hand_out(document, as_json, csv_file, markdown)


def _measured(
    request: Any, cores: float, out: Path | None, force: bool, arguments: list[str]
) -> dict[str, Any]:
    """The document of a grid, also kept in its folder."""
    from stepscope.bench.document import document, made_with
    from stepscope.bench.loader import grid
    from stepscope.bench.loader_summary import about, conclude, points
    from stepscope.bench.results import open_results
    from stepscope.bench.run import run
    from stepscope.cli.bench_interrupt import interruptible
    from stepscope.cli.bench_progress import of_loader, progress
    from stepscope.record.privacy import masked_arguments

    settings, notes = grid(request)
    command = shlex.join(["stepscope", "bench", *masked_arguments(arguments)])
    with open_results(out, request, made_with(request.devices), force, Path.cwd()) as results:
        with interruptible(results, arguments), progress(results, of_loader) as on_progress:
            run(request, results, on_progress, every=list(settings.values()))
        records = results.records
        found = points(settings, records)
        if all(point["status"] != "ok" for point in found):
            raise UsageError(f"{request.models[0]}: no setting works: {found[0]['why']}")
        told = {**about(records), "usable_cores": cores, **conclude(found, records)}
        more = {"points": found, "loader": told}
        whole = document(request, [], {}, command, results.begun, notes, **more)
        results.write_document(whole)
    return whole


def writable(*files: Path | None) -> None:
    """Raise UsageError now rather than after all the measuring."""
    for path in files:
        if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
            raise UsageError(f"cannot write {path}: name a file in a folder that exists")


def _hand_out(
    document: dict[str, Any], as_json: bool, csv_file: Path | None, markdown: Path | None
) -> None:
    from stepscope.report.bench_loader import csv_loader, markdown_loader, print_loader

    for path, text in ((csv_file, csv_loader), (markdown, markdown_loader)):
        if path is not None:
            path.write_text(text(document))
    if as_json:
        json.dump(document, sys.stdout, indent=1, allow_nan=False)
        print()
    else:
        print_loader(document, sys.stdout)


def _device(asked: str) -> str:
    from stepscope.bench.ask import devices_of

    return devices_of(None if asked == "auto" else asked)[0]


def _numbers(option: str, text: str, least: int) -> tuple[int, ...]:
    """The numbers in a list, in order. Raises UsageError."""
    pieces = [piece.strip() for piece in text.split(",")]
    if not all(p.isdecimal() and p.isascii() and len(p) < 5 and int(p) >= least for p in pieces):
        raise UsageError(f"{option} {text}: give numbers from {least} on, as in {option} 2,4,8")
    return tuple(sorted(set(map(int, pieces))))


def _switches(text: str) -> tuple[bool, ...]:
    pieces = {piece.strip() for piece in text.split(",")}
    if not pieces <= {"off", "on"}:
        raise UsageError(f"--pin {text}: give off, on or off,on")
    return tuple(sorted(piece == "on" for piece in pieces))
