"""`stepscope analyze`: what a trace recorded anywhere tells."""

import json
import sys
from pathlib import Path
from typing import Any

import click

from stepscope.record.errors import UsageError


@click.command()
@click.argument("traces", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@click.option("--all", "everything", is_flag=True, help="Every finding, and all there is.")
@click.option("--ncu", type=click.Path(path_type=Path), help="Counters of Nsight Compute to use.")
@click.option(
    "--export", "target", type=click.Path(path_type=Path), help="Events as .parquet/.arrow."
)
@click.option("--force", is_flag=True, help="Replace the file named by --export.")
def analyze(
    traces: tuple[Path, ...],
    as_json: bool,
    everything: bool,
    ncu: Path | None,
    target: Path | None,
    force: bool,
) -> None:
    """Read TRACES and account for every microsecond.

    A trace is a Kineto/Chrome .json or .json.gz, an Nsight Systems .sqlite, .nsys-rep or .qdrep,
    or a folder of ranks.
    """
    from stepscope.analyze.timeline.document import analyze_ranks, analyze_timeline
    from stepscope.diagnose.findings import with_trace_findings
    from stepscope.hardware.ceiling_cache import known_ceilings
    from stepscope.report.render.terminal.story import print_story
    from stepscope.report.story.trace.story import ranks_story, trace_screen, trace_story
    from stepscope.trace.export import check_export_path, export_timelines
    from stepscope.trace.load import open_ranks

    if target is not None:
        check_export_path(target, force)
    timelines = open_ranks(list(traces))
    if ncu is not None and len(timelines) > 1:
        raise UsageError("--ncu takes one trace: counters do not name their rank")
    if target is not None:
        export_timelines(timelines, target, force)
    if len(timelines) > 1:
        document = analyze_ranks(timelines, known_ceilings())
    else:
        counters = _counters(ncu, timelines[0]) if ncu is not None else None
        document = analyze_timeline(timelines[0], known_ceilings(), counters)
        document = with_trace_findings(document, timelines[0])
    if as_json:
        json.dump(document, sys.stdout, indent=1, allow_nan=False)
        print()
    elif len(timelines) > 1:
        print_story(ranks_story(document), sys.stdout)
    elif everything:
        print_story(trace_story(document, timelines[0]), sys.stdout, detail=True)
    else:
        print_story(trace_screen(document), sys.stdout)


def _counters(path: Path, timeline: Any) -> Any:
    """What Nsight Compute counted, by kernel; says on stderr how much of it found its kernel."""
    from stepscope.trace.nsight.counter_join import join_counters
    from stepscope.trace.nsight.counters import read_ncu

    found = join_counters(read_ncu(path), timeline)
    kernels = len(found.counters)
    print(
        f"stepscope: counters for {kernels:,} kernels, none for {found.kernels_without:,};"
        f" {found.counters_without:,} counters fit no kernel",
        file=sys.stderr,
    )
    return found.counters
