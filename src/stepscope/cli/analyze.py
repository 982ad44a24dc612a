"""`stepscope analyze`: read a trace from any profiler."""

import sys
from pathlib import Path

import click

from stepscope.record.errors import UsageError

_FILE = click.Path(path_type=Path)


@click.command()
@click.argument("traces", nargs=-1, required=True, type=_FILE)
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@click.option("--all", "everything", is_flag=True, help="Print every finding and every table.")
@click.option("--ncu", type=_FILE, help="Counters from Nsight Compute.")
@click.option("--export", "target", type=_FILE, help="Write events as .parquet/.arrow.")
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
    from stepscope.report.render.terminal.story import print_story
    from stepscope.report.story.narrator import screen_of, story_of
    from stepscope.results.load import Ranks, Trace, load_traces
    from stepscope.store.json_file import json_text
    from stepscope.trace.export import check_export_path, export_timelines

    if target is not None:
        check_export_path(target, force)
    loaded = load_traces(traces)
    if ncu is not None and isinstance(loaded, Ranks):
        raise UsageError("--ncu takes one trace: counters do not name their rank")
    if target is not None:
        export_timelines(loaded.timelines, target, force)
    if ncu is not None and isinstance(loaded, Trace):
        from stepscope.trace.nsight.counter_join import join_counters
        from stepscope.trace.nsight.counters import read_ncu

        found = join_counters(read_ncu(ncu), loaded.recording)
        loaded.counters = found.counters
        print(
            f"stepscope: counters for {len(found.counters):,} kernels,"
            f" none for {found.kernels_without:,};"
            f" {found.counters_without:,} counters fit no kernel",
            file=sys.stderr,
        )
    if as_json:
        print(json_text(loaded.document))
    else:
        story = story_of(loaded) if everything else screen_of(loaded)
        print_story(story, sys.stdout, detail=everything)
