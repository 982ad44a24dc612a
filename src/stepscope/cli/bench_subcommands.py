"""`stepscope bench loader` and `stepscope bench kernels`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stepscope.cli import bench_session as session
from stepscope.record.errors import UsageError

if TYPE_CHECKING:
    from stepscope.bench.grid import BenchRequest
    from stepscope.bench.kernel_recording import KernelSubject
    from stepscope.bench.results import BenchResult


@click.command("loader", cls=session.BenchCommand)
@click.argument("source", metavar="[WORKLOAD|file.py:dataset|module:dataset]", default="resnet18")
@click.option("--batch", default="32,64,128", help="Batch sizes [32,64,128].")
@click.option("--workers", help="Worker counts [0 to the usable cores].")
@click.option("--pin", default="off,on", help="Pinned memory: off, on [off,on].")
@click.option("--prefetch", default="2,4", help="Batches ahead per worker [2,4].")
@click.option("--device", type=click.Choice(("auto", "cpu", "cuda")), default="auto")
@click.option("--seconds", type=click.FloatRange(0.1), default=2.0, help="Seconds per process [2].")
@click.option("--rounds", type=click.IntRange(1), default=1, help="Processes per setting [1].")
@click.option("--samples", type=click.IntRange(1), help="Samples in a workload [2048].")
@click.option("--size", type=click.IntRange(1), help="Image size of a workload, in pixels.")
@click.option("--decode-ms", type=click.FloatRange(0), help="CPU time to decode each sample.")
@click.option("--latency-ms", type=click.FloatRange(0), help="Latency of each sample.")
@click.option("--resize", type=click.IntRange(1), help="Size of the stored images, in pixels.")
@click.option(
    "--disk-mb-s", type=click.FloatRange(0, min_open=True), help="Simulate a disk of this rate."
)
@click.option(
    "--timeout", type=click.FloatRange(1), default=300.0, help="Seconds per process [300]."
)
@session.output_options("--out", "--force", "--json", "--csv", "--markdown")
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

    SOURCE is a workload (stepscope bench --list), or a Dataset in a file or module of yours, or a
    function that returns one. Comma-separated lists make a grid.
    """
    from stepscope.bench.build_request import parse_devices, parse_numbers
    from stepscope.bench.loader_grid import loader_request, worker_counts
    from stepscope.hardware.machine import describe_cpu
    from stepscope.workloads.catalogue import find_workload

    session.check_writable(csv_file, markdown)
    given = [name for name, value in data.items() if value is not None]
    if find_workload(source).task == "user" and given:
        option = given[0].replace("_", "-")
        raise UsageError(f"--{option} is for built-in workloads: {source} is your own dataset")
    cores = describe_cpu().usable_cores
    request = loader_request(
        source,
        parse_devices(None if device == "auto" else device)[0],
        parse_numbers("--batch", batch),
        parse_numbers("--workers", workers, 0) if workers else worker_counts(cores),
        _switches(pin),
        parse_numbers("--prefetch", prefetch),
        rounds,
        timeout,
        seconds=seconds,
        **data,
    )
    session.write_results(_measured(request, cores, out, force), as_json, csv_file, markdown)


def _measured(
    request: "BenchRequest", cores: float, out: Path | None, force: bool
) -> "BenchResult":
    """Run a grid and keep its result in its folder."""
    from stepscope.bench.loader_grid import loader_result, measured_settings, setting_points
    from stepscope.bench.run import run_grid
    from stepscope.bench.summary import bench_result
    from stepscope.report.story.bench.loader import setting_name

    settings, notes = setting_points(request)
    names = {point.key(): setting_name(setting) for setting, point in settings.items()}
    with session.open_session(request, out, force) as results:
        with session.grid_progress(results, lambda point: names[point.key()]) as on_progress:
            run_grid(request, results, on_progress, every=list(settings.values()))
        points = measured_settings(settings, results.records)
        if all(point.status != "ok" for point in points):
            raise UsageError(f"{request.models[0]}: no setting works: {points[0].why}")
        found = loader_result(points, results.records, cores)
        words, begun = session.command_line(), results.begun
        whole = bench_result(request, [], {}, words, begun, notes, points=points, loader=found)
        results.write_result(whole)
    return whole


def _switches(text: str) -> tuple[bool, ...]:
    pieces = {piece.strip() for piece in text.split(",")}
    if not pieces <= {"off", "on"}:
        raise UsageError(f"--pin {text}: use off, on or off,on")
    return tuple(sorted(piece == "on" for piece in pieces))


@click.command("kernels", cls=session.BenchCommand)
@click.argument("model")
@click.option("--mode", type=click.Choice(("train", "infer")), help="[train]")
@click.option("--batch", type=click.IntRange(1), help="Batch size [the model's own].")
@click.option("--device", type=click.Choice(("cpu", "cuda")), help="[the GPU if there is one]")
@click.option("--fix", "fixes", multiple=True, metavar="F,…", help="Apply fixes (stepscope fixes).")
@click.option("--size", type=click.IntRange(1), help="Image height and width in pixels.")
@click.option("--length", type=click.IntRange(1), help="Tokens or characters per sample.")
@click.option("--top", type=click.IntRange(1, 100), default=10, help="Operators to show [10].")
@click.option(
    "--timeout", type=click.FloatRange(1), default=300.0, help="Seconds per recording [300]."
)
@session.output_options("--json", "--markdown")
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
    """Record a few steps of MODEL and compare its heaviest operators with the device's ceilings.

    With Nsight Compute (ncu) on the PATH, adds measured FLOPs and bytes.
    """
    from stepscope.bench.build_request import check_needs, parse_devices, parse_modes
    from stepscope.bench.grid import Variant, split_fixes, variant_label
    from stepscope.bench.kernel_recording import KernelSubject
    from stepscope.workloads.catalogue import find_workload

    session.check_writable(markdown)
    workload = find_workload(model)
    modes = parse_modes([model], mode)
    devices = parse_devices(device)
    asked = split_fixes(",".join(fixes)) if fixes else ()
    check_needs([Variant(variant_label(asked), asked)], devices)
    given = {name: value for name, value in settings.items() if value is not None}
    batch = batch or workload.batch
    subject = KernelSubject(model, modes[0], batch, devices[0], asked, given)
    session.write_results(_studied(subject, top, timeout), as_json, None, markdown)


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
    from stepscope.trace.kineto.read import read_kineto

    started = datetime.now(UTC).isoformat(timespec="seconds")
    with TemporaryDirectory(prefix="stepscope-") as folder:
        session.announce(f"recording {STEPS} steps of {subject.model}")
        trace, fixes = record_kernels(subject, Path(folder) / "recorded", timeout)
        timeline = read_kineto(trace)
        limits = ceilings_of_timeline(timeline, subject.device)
        plain = compare_with_ceilings(timeline, ceilings=limits, steps=STEPS)
        names = sorted(heaviest_kernels(plain, top))
        count = count_kernels(subject, names, Path(folder) / "counted", timeout, session.announce)
    found = compare_with_ceilings(timeline, count.counters, ceilings=limits, steps=STEPS)
    tables = study_kernels(found, STEPS, top)
    return kernels_result(subject, tables, count, fixes, session.command_line(), started)
