"""`stepscope bench loader` and `stepscope bench kernels`."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stepscope.record.errors import UsageError

if TYPE_CHECKING:
    from stepscope.bench.grid import BenchRequest
    from stepscope.bench.kernel_recording import KernelSubject
    from stepscope.bench.results import BenchResult

_ARGUMENTS = "stepscope.bench.arguments"


class _Subcommand(click.Command):
    """Keeps its arguments, to say how it can be repeated or resumed."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_ARGUMENTS] = [str(self.name), *args]
        return super().parse_args(ctx, args)


@click.command("loader", cls=_Subcommand)
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
    from stepscope.bench.build_request import parse_batches
    from stepscope.bench.loader_grid import loader_request, worker_counts
    from stepscope.cli.bench_session import check_writable, hand_out
    from stepscope.hardware.machine import describe_cpu
    from stepscope.workloads.catalogue import find_workload

    check_writable(csv_file, markdown)
    given = [name for name, value in data.items() if value is not None]
    if find_workload(source).task == "given" and given:
        option = given[0].replace("_", "-")
        raise UsageError(f"--{option} is for built-in workloads: {source} is your own data set")
    cores = describe_cpu().usable_cores
    request = loader_request(
        source,
        _device(device),
        parse_batches(batch),
        _numbers("--workers", workers, 0) if workers else worker_counts(cores),
        _switches(pin),
        _numbers("--prefetch", prefetch, 1),
        rounds,
        timeout,
        seconds=seconds,
        **data,
    )
    arguments = click.get_current_context().meta[_ARGUMENTS]
    hand_out(_measured(request, cores, out, force, arguments), as_json, csv_file, markdown)


def _measured(
    request: "BenchRequest", cores: float, out: Path | None, force: bool, arguments: list[str]
) -> "BenchResult":
    """The result of a grid, also kept in its folder."""
    from stepscope.bench.loader_grid import (
        loader_result,
        setting_points,
        setting_points_measured,
    )
    from stepscope.bench.run import open_bench_folder, run_grid
    from stepscope.bench.summary import bench_result, made_with
    from stepscope.cli.bench_session import grid_progress, interruptible, loader_point_name
    from stepscope.record.privacy import masked_arguments

    settings, notes = setting_points(request)
    command = shlex.join(["stepscope", "bench", *masked_arguments(arguments)])
    with open_bench_folder(out, request, made_with(request.devices), force, Path.cwd()) as results:
        with (
            interruptible(results, arguments),
            grid_progress(results, loader_point_name) as on_progress,
        ):
            run_grid(request, results, on_progress, every=list(settings.values()))
        records = results.records
        points = setting_points_measured(settings, records)
        if all(point.status != "ok" for point in points):
            raise UsageError(f"{request.models[0]}: no setting works: {points[0].why}")
        found = loader_result(points, records, cores)
        whole = bench_result(
            request, [], {}, command, results.begun, notes, points=points, loader=found
        )
        results.write_result(whole)
    return whole


def _device(asked: str) -> str:
    from stepscope.bench.build_request import parse_devices

    return parse_devices(None if asked == "auto" else asked)[0]


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


@click.command("kernels", cls=_Subcommand)
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
    from stepscope.cli.bench_session import check_writable, hand_out

    check_writable(markdown)
    subject = _subject(model, mode, batch, device, fixes, settings)
    hand_out(_studied(subject, top, timeout), as_json, None, markdown)


def _subject(
    model: str,
    mode: str | None,
    batch: int | None,
    device: str | None,
    fixes: tuple[str, ...],
    settings: dict[str, Any],
) -> "KernelSubject":
    """What is to be studied, checked. Raises UsageError."""
    from stepscope.bench.build_request import check_needs, parse_devices, parse_modes
    from stepscope.bench.grid import Variant, split_fixes, variant_label
    from stepscope.bench.kernel_recording import KernelSubject
    from stepscope.workloads.catalogue import find_workload

    workload = find_workload(model)
    modes = parse_modes([model], mode)
    devices = parse_devices(device)
    asked = split_fixes(",".join(fixes)) if fixes else ()
    check_needs([Variant(variant_label(asked), asked)], devices)
    given = {name: value for name, value in settings.items() if value is not None}
    return KernelSubject(model, modes[0], batch or workload.batch, devices[0], asked, given)


def _studied(subject: "KernelSubject", top: int, timeout: float) -> "BenchResult":
    from datetime import UTC, datetime
    from tempfile import TemporaryDirectory

    from stepscope.bench.kernel_recording import (
        STEPS,
        ceilings_of_timeline,
        count_kernels,
        kernels_result,
        record_kernels,
    )
    from stepscope.bench.kernel_study import compare_with_ceilings, heaviest_kernels, study_kernels
    from stepscope.cli.bench_session import announce
    from stepscope.trace.kineto.read import read_kineto

    started = datetime.now(UTC).isoformat(timespec="seconds")
    with TemporaryDirectory(prefix="stepscope-") as folder:
        announce(f"recording {STEPS} steps of {subject.model}")
        trace, fixes = record_kernels(subject, Path(folder) / "recorded", timeout)
        timeline = read_kineto(trace)
        limits = ceilings_of_timeline(timeline, subject.device)
        plain = compare_with_ceilings(timeline, ceilings=limits, steps=STEPS)
        names = sorted(heaviest_kernels(plain, top))
        count = count_kernels(subject, names, Path(folder) / "counted", timeout, announce)
    found = compare_with_ceilings(timeline, count.counters, ceilings=limits, steps=STEPS)
    arguments = click.get_current_context().meta[_ARGUMENTS]
    command = shlex.join(["stepscope", "bench", *arguments])
    return kernels_result(subject, study_kernels(found, STEPS, top), count, fixes, command, started)
