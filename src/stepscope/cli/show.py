"""`stepscope show`: print a run again."""

import json
import sys
from pathlib import Path

import click


@click.command()
@click.argument("run", required=False)
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@click.option("--all", "everything", is_flag=True, help="Every finding, and what is fine.")
def show(run: str | None, as_json: bool, everything: bool) -> None:
    """Print RUN: a run folder or an id; the last run here when left out."""
    from stepscope.analyze.run.summary import summarize
    from stepscope.diagnose.findings import with_findings
    from stepscope.report.render.terminal.story import print_story
    from stepscope.report.story.narrator import story_of
    from stepscope.report.story.run.story import run_screen
    from stepscope.results.load import load_result
    from stepscope.store.folder import find_run

    folder = find_run(run, Path.cwd())
    if everything and not as_json:
        print_story(story_of(load_result(str(folder), Path.cwd())), sys.stdout, detail=True)
        return
    document = with_findings(summarize(folder), folder)
    if as_json:
        json.dump(document, sys.stdout, indent=1, allow_nan=False)
        print()
    else:
        print_story(run_screen(document), sys.stdout)
