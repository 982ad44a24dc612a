"""`stepscope bench`: how fast models are on this machine."""

import json
import shlex
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from stepscope.cli.bench_options import add_settings
from stepscope.record.errors import UsageError

OTHERS = {
    "loader": "Which DataLoader settings deliver the most samples.",
    "kernels": "The heaviest kernels of a model, beside what they could be.",
}
STUDIES = ("cpu-gpu", "memory")
_ARGUMENTS = "stepscope.bench.arguments"


class Bench(click.Command):
    """The grid over models, unless the first word names one of the other benchmarks."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **x: Any
    ) -> click.Context:
        if args and args[0] in OTHERS:
            module = import_module(f"stepscope.cli.bench_{args[0]}")
            other: click.Command = getattr(module, args[0])
            return other.make_context(f"{info_name} {args[0]}", args[1:], parent, **x)
        return super().make_context(info_name, args, parent, **x)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_ARGUMENTS] = list(args)
        return super().parse_args(ctx, args)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Other benchmarks"):
            formatter.write_dl([(f"bench {name} --help", words) for name, words in OTHERS.items()])


@click.command(cls=Bench)
@click.argument("models", nargs=-1, metavar="MODEL…")
@click.option("--list", "listed", is_flag=True, help="The built-in models.")
@click.option("--mode", metavar="M,…", help="train, infer, generate [train].")
@click.option("--batch", metavar="N,…", help="Batch sizes [each model's own].")
@click.option("--device", metavar="D,…", help="cpu, cuda [the GPU if there is one].")
@click.option("--fix", "fixes", multiple=True, metavar="F,…", help="A variant; none for no fix.")
@click.option("--ablate", metavar="F,F,…", help="Each alone, adding up, and each left out.")
@click.option("--study", type=click.Choice(STUDIES), help="A whole study of one model.")
@click.option("--rounds", type=click.IntRange(1), default=3, help="Processes per point [3].")
@add_settings
@click.option("--price-per-hour", type=click.FloatRange(0), help="Of the machine, any currency.")
@click.option("--carbon-intensity", type=click.FloatRange(0), help="Grams of CO2 per kWh.")
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    default=1800.0,
    help="Seconds each [1800].",
)
@click.option("--out", type=click.Path(path_type=Path), help="Folder; goes on with what it lacks.")
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
    grid that was interrupted goes on where it stopped.
    """
    from stepscope.bench.ask import ask

    if listed:
        from stepscope.cli.bench_list import print_list

        print_list(as_json)
        return 0
    _writable(csv_file, markdown)
    request = ask(
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
    document = _measured(request, out, force, arguments)
    _hand_out(document, as_json, csv_file, markdown)
    return 0 if study or any(point["status"] == "ok" for point in document["points"]) else 1


def _measured(
    request: Any, out: Path | None, force: bool, arguments: Sequence[str]
) -> dict[str, Any]:
    """The document of a grid or study, also kept in its folder."""
    from stepscope.bench.ceilings import matmul_ceilings
    from stepscope.bench.document import document, made_with
    from stepscope.bench.results import open_results
    from stepscope.bench.run import run
    from stepscope.cli.bench_interrupt import interruptible
    from stepscope.cli.bench_progress import progress, say
    from stepscope.record.privacy import masked_arguments
    from stepscope.report.compare_sides import remember_result

    command = shlex.join(["stepscope", "bench", *masked_arguments(arguments)])
    made = made_with(request.devices)
    more: dict[str, Any] = {}
    with open_results(out, request, made, force, Path.cwd()) as results:
        with interruptible(results, arguments):
            known = () if request.study else request.devices
            ceilings, notes = matmul_ceilings(known, say)
            if request.study:
                module = f"stepscope.bench.studies.{request.study.replace('-', '_')}"
                more["study"] = import_module(module).run(request, results.folder, say)
            else:
                with progress(results) as on_progress:
                    run(request, results, on_progress)
        begun, records = results.begun, results.records
        whole = document(request, records, ceilings, command, begun, notes, **more)
        results.write_document(whole)
    remember_result(results.folder)
    return whole


def _hand_out(
    document: dict[str, Any], as_json: bool, csv_file: Path | None, markdown: Path | None
) -> None:
    from stepscope.report import bench_tables
    from stepscope.report.bench import print_bench

    if csv_file is not None:
        csv_file.write_text(bench_tables.csv(document))
    if markdown is not None:
        markdown.write_text(bench_tables.markdown(document))
    if as_json:
        json.dump(document, sys.stdout, indent=1, allow_nan=False)
        print()
    else:
        print_bench(document, sys.stdout)


def _writable(*files: Path | None) -> None:
    """Raise UsageError now rather than after an hour of measuring."""
    for path in files:
        if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
            raise UsageError(f"cannot write {path}: name a file in a folder that exists")
