"""`stepscope bench`: how fast models are on this machine."""

import json
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib import import_module
from itertools import zip_longest
from pathlib import Path
from shutil import get_terminal_size
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import click

from stepscope.bench.studies import STUDIES

if TYPE_CHECKING:
    from stepscope.bench.grid import BenchRequest
    from stepscope.bench.results import BenchResult

_ABOVE_0 = click.FloatRange(0, min_open=True)
_FROM_0 = click.FloatRange(0)
_COUNT = click.IntRange(1)
_SETTINGS = (
    ("--seconds", _ABOVE_0, "Measured in each process [2]."),
    ("--steps", _COUNT, "Measure this many steps instead."),
    ("--epochs", _COUNT, "Train this often over all samples instead."),
    ("--size", _COUNT, "Pixels of an image's side."),
    ("--length", _COUNT, "Tokens or characters of a sample."),
    ("--classes", _COUNT, "Classes of a classifier."),
    ("--data", str, "synthetic, resident, cifar10, images:FOLDER … [resident]."),
    ("--samples", _COUNT, "Samples to train on."),
    ("--test-samples", _COUNT, "Samples to score on."),
    ("--target-score", float, "Time until this score."),
    ("--seed", int, "Of data and weights [0]."),
    ("--prompt", _COUNT, "Tokens of a prompt [32]."),
    ("--new-tokens", _COUNT, "Tokens to generate [32]."),
    ("--workers", click.IntRange(0), "Workers of the program's loader [0]."),
    ("--decode-ms", _FROM_0, "Unpacking of each sample."),
    ("--latency-ms", _FROM_0, "Waiting for each sample."),
    ("--resize", _COUNT, "Pixels of stored images, to be resized."),
    ("--disk-mb-s", _ABOVE_0, "Rate of a slow disk."),
    ("--threads", _COUNT, "Processor threads of an operation."),
    ("--memory-limit-gib", _ABOVE_0, "More counts as out of memory."),
)


def _add_settings(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command all of them; what is not given is left to the program that measures."""
    for name, kind, words in reversed(_SETTINGS):
        command = click.option(name, type=kind, help=words)(command)
    return command


def _print_list(as_json: bool) -> None:
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


SUBCOMMANDS = {
    "loader": "Which DataLoader settings deliver the most samples.",
    "kernels": "The heaviest kernels of a model, beside what they could be.",
}
_ARGUMENTS = "stepscope.bench.arguments"


class Bench(click.Command):
    """The grid over models, unless the first word names one of the other benchmarks."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **x: Any
    ) -> click.Context:
        if args and args[0] in SUBCOMMANDS:
            module = import_module("stepscope.cli.bench_subcommands")
            other: click.Command = getattr(module, args[0])
            return other.make_context(f"{info_name} {args[0]}", args[1:], parent, **x)
        return super().make_context(info_name, args, parent, **x)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_ARGUMENTS] = list(args)
        return super().parse_args(ctx, args)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Other benchmarks"):
            formatter.write_dl(
                [(f"bench {name} --help", words) for name, words in SUBCOMMANDS.items()]
            )


@click.command(cls=Bench)
@click.argument("models", nargs=-1, metavar="MODEL…")
@click.option("--list", "listed", is_flag=True, help="The built-in models.")
@click.option("--mode", metavar="M,…", help="train, infer, generate [train].")
@click.option("--batch", metavar="N,…", help="Batch sizes [each model's own].")
@click.option("--device", metavar="D,…", help="cpu, cuda [the GPU if there is one].")
@click.option("--fix", "fixes", multiple=True, metavar="F,…", help="A variant; none for no fix.")
@click.option("--ablate", metavar="F,F,…", help="Each alone, adding up, and each left out.")
@click.option("--study", type=click.Choice(tuple(STUDIES)), help="A whole study of one model.")
@click.option("--rounds", type=click.IntRange(1), default=3, help="Processes per point [3].")
@_add_settings
@click.option("--price-per-hour", type=click.FloatRange(0), help="Of the machine, any currency.")
@click.option("--carbon-intensity", type=click.FloatRange(0), help="Grams of CO2 per kWh.")
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    default=1800.0,
    help="Seconds each [1800].",
)
@click.option("--out", type=click.Path(path_type=Path), help="Folder; resumes what is there.")
@click.option("--force", is_flag=True, help="Replace the results in --out.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@click.option("--csv", "csv_file", type=click.Path(path_type=Path), help="A row per point.")
@click.option("--markdown", type=click.Path(path_type=Path), help="The tables, in this file.")
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

    Lists separated by commas make a grid. Each point is measured in processes of its own, and a
    grid that was interrupted resumes where it stopped.
    """
    from stepscope.bench.build_request import build_request
    from stepscope.cli.bench_session import check_writable, hand_out

    if listed:
        _print_list(as_json)
        return 0
    check_writable(csv_file, markdown)
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
    arguments = click.get_current_context().meta[_ARGUMENTS]
    bench = _measured(request, out, force, arguments)
    hand_out(bench, as_json, csv_file, markdown)
    return 0 if study or any(point.status == "ok" for point in bench.points) else 1


def _measured(
    request: "BenchRequest", out: Path | None, force: bool, arguments: Sequence[str]
) -> "BenchResult":
    """The result of a grid or study, also kept in its folder."""
    from stepscope.bench.ceilings import matmul_ceilings
    from stepscope.bench.run import open_bench_folder, run_grid
    from stepscope.bench.studies import run_study
    from stepscope.bench.summary import bench_result, made_with
    from stepscope.cli.bench_session import announce, grid_progress, interruptible
    from stepscope.compare.open_sides import remember_noise_of
    from stepscope.record.privacy import masked_arguments

    command = shlex.join(["stepscope", "bench", *masked_arguments(arguments)])
    made = made_with(request.devices)
    more: dict[str, Any] = {}
    with open_bench_folder(out, request, made, force, Path.cwd()) as results:
        with interruptible(results, arguments):
            known = () if request.study else request.devices
            ceilings, notes = matmul_ceilings(known, announce)
            if request.study:
                more["study"] = run_study(request, results.folder, announce)
            else:
                with grid_progress(results) as on_progress:
                    run_grid(request, results, on_progress)
        begun, records = results.begun, results.records
        whole = bench_result(request, records, ceilings, command, begun, notes, **more)
        results.write_result(whole)
    remember_noise_of(results.folder)
    return whole
