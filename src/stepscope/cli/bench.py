"""`stepscope bench`: how fast models are on this machine."""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from importlib import import_module
from itertools import zip_longest
from pathlib import Path
from shutil import get_terminal_size
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import click

from stepscope.bench.studies import STUDIES
from stepscope.cli import bench_session as session

if TYPE_CHECKING:
    from stepscope.bench.grid import BenchRequest
    from stepscope.bench.results import BenchResult

_ABOVE_0 = click.FloatRange(0, min_open=True)
_FROM_0 = click.FloatRange(0)
_COUNT = click.IntRange(1)
_SETTINGS = (
    ("--seconds", _ABOVE_0, "Seconds measured per process [2]."),
    ("--steps", _COUNT, "Measure this many steps instead."),
    ("--epochs", _COUNT, "Train this many epochs instead."),
    ("--size", _COUNT, "Image height and width in pixels."),
    ("--length", _COUNT, "Tokens or characters per sample."),
    ("--classes", _COUNT, "Classes of a classifier."),
    ("--data", str, "synthetic, resident, cifar10, images:FOLDER … [resident]."),
    ("--samples", _COUNT, "Training samples."),
    ("--test-samples", _COUNT, "Test samples."),
    ("--target-score", float, "Train until the test split reaches it."),
    ("--seed", int, "Seed of data and weights [0]."),
    ("--prompt", _COUNT, "Tokens per prompt [32]."),
    ("--new-tokens", _COUNT, "Tokens to generate [32]."),
    ("--workers", click.IntRange(0), "DataLoader workers [0]."),
    ("--decode-ms", _FROM_0, "CPU time to decode each sample."),
    ("--latency-ms", _FROM_0, "Latency of each sample."),
    ("--resize", _COUNT, "Size of the stored images, in pixels."),
    ("--disk-mb-s", _ABOVE_0, "Read samples from files at this rate."),
    ("--threads", _COUNT, "CPU threads per operation."),
    ("--memory-limit-gib", _ABOVE_0, "Report out of memory above this."),
)


def _add_settings(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the settings to a command; the measuring program holds their defaults."""
    for name, kind, words in reversed(_SETTINGS):
        command = click.option(name, type=kind, help=words)(command)
    return command


def _print_list(as_json: bool) -> None:
    """Print the built-in models as a table or a JSON list."""
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
        width = max(20, get_terminal_size().columns - len(left) - 17)
        modes = wrap(", ".join(one.modes), 15, break_on_hyphens=False)
        about = wrap(one.about, width, break_on_hyphens=False)
        for number, (first, second) in enumerate(zip_longest(modes, about, fillvalue="")):
            print(f"{'' if number else left:<{len(left)}}{first:<15}  {second}".rstrip())
    print("\nalso: file.py:factory, module:factory, torchvision:NAME, timm:NAME, hf:NAME")


def _count(parameters: int | None) -> str:
    if parameters is None:
        return "–"
    return f"{parameters / 1e6:,.1f} M" if parameters >= 1e5 else f"{parameters / 1e3:,.0f} k"


SUBCOMMANDS = {
    "loader": "Which DataLoader settings deliver the most samples.",
    "kernels": "The heaviest operators of a model, against the device's ceilings.",
}


class Bench(session.BenchCommand):
    """The grid over models, unless the first word names another benchmark."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **x: Any
    ) -> click.Context:
        if args and args[0] in SUBCOMMANDS:
            module = import_module("stepscope.cli.bench_subcommands")
            other: click.Command = getattr(module, args[0])
            return other.make_context(f"{info_name} {args[0]}", args[1:], parent, **x)
        return super().make_context(info_name, args, parent, **x)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        others = [(f"bench {name} --help", words) for name, words in SUBCOMMANDS.items()]
        with formatter.section("Other benchmarks"):
            formatter.write_dl(others)


@click.command(cls=Bench)
@click.argument("models", nargs=-1, metavar="MODEL…")
@click.option("--list", "listed", is_flag=True, help="List the built-in models.")
@click.option("--mode", metavar="M,…", help="train, infer, generate [train].")
@click.option("--batch", metavar="N,…", help="Batch sizes [each model's own].")
@click.option("--device", metavar="D,…", help="cpu, cuda [the GPU if there is one].")
@click.option("--fix", "fixes", multiple=True, metavar="F,…", help="A variant; none for no fix.")
@click.option("--ablate", metavar="F,F,…", help="Each fix alone, added in turn, left out.")
@click.option("--study", type=click.Choice(tuple(STUDIES)), help="Study one model in depth.")
@click.option("--rounds", type=click.IntRange(1), default=3, help="Processes per point [3].")
@_add_settings
@click.option(
    "--price-per-hour", type=click.FloatRange(0), help="Machine's price, in any currency."
)
@click.option("--carbon-intensity", type=click.FloatRange(0), help="Grams of CO2 per kWh.")
@click.option("--timeout", type=_ABOVE_0, default=1800.0, help="Seconds per process [1800].")
@session.output_options("--out", "--force", "--json", "--csv", "--markdown")
def bench(
    models: tuple[str, ...],
    listed: bool,
    mode: str | None,
    batch: str | None,
    device: str | None,
    fixes: tuple[str, ...],
    ablate: str | None,
    study: str | None,
    rounds: int,
    price_per_hour: float | None,
    carbon_intensity: float | None,
    timeout: float,
    out: Path | None,
    force: bool,
    as_json: bool,
    csv_file: Path | None,
    markdown: Path | None,
    **settings: Any,
) -> int:
    """Measure MODELs: built-in ones, file.py:factory, torchvision:NAME, timm:NAME, hf:NAME.

    Comma-separated lists make a grid. Each point is measured in processes of its own; an
    interrupted grid resumes where it stopped.
    """
    from stepscope.bench.build_request import build_request

    if listed:
        _print_list(as_json)
        return 0
    session.check_writable(csv_file, markdown)
    request = build_request(
        models,
        mode,
        batch,
        device,
        fixes,
        ablate,
        settings,
        rounds=rounds,
        timeout_s=timeout,
        price_per_hour=price_per_hour,
        carbon_intensity=carbon_intensity,
        study=study,
    )
    bench = _measured(request, out, force)
    session.write_results(bench, as_json, csv_file, markdown)
    return 0 if study or any(point.status == "ok" for point in bench.points) else 1


def _measured(request: "BenchRequest", out: Path | None, force: bool) -> "BenchResult":
    """Run a grid or study and keep its result in its folder."""
    from stepscope.bench.machine import matmul_ceilings
    from stepscope.bench.run import run_grid
    from stepscope.bench.studies import run_study
    from stepscope.bench.summary import bench_result
    from stepscope.compare.open_sides import remember_noise_of

    with session.open_session(request, out, force) as results:
        devices = () if request.study else request.devices
        ceilings, notes = matmul_ceilings(devices, session.announce)
        study = run_study(request, results.folder, session.announce) if request.study else None
        if study is None:
            with session.grid_progress(results) as on_progress:
                run_grid(request, results, on_progress)
        words, begun = session.command_line(), results.begun
        whole = bench_result(request, results.records, ceilings, words, begun, notes, study=study)
        results.write_result(whole)
    remember_noise_of(results.folder)
    return whole
