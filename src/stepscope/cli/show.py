"""`stepscope show`: print a run again."""

import json
import sys

import click


@click.command()
@click.argument("run", required=False)
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@click.option("--all", "everything", is_flag=True, help="Every finding, and what is fine.")
def show(run: str | None, as_json: bool, everything: bool) -> None:
    """Print RUN: a run folder or an id; the last run here when left out."""
    from stepscope.report.render.terminal.run import print_run
    from stepscope.results.load import load

    document = load(run, kinds=["run"]).document
    if as_json:
        json.dump(document, sys.stdout, indent=1, allow_nan=False)
        print()
    else:
        print_run(document, sys.stdout, everything)
