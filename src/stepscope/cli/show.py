"""`stepscope show`: print an earlier run."""

import sys

import click


@click.command()
@click.argument("run", required=False)
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@click.option("--all", "everything", is_flag=True, help="Every finding, and what is fine.")
def show(run: str | None, as_json: bool, everything: bool) -> None:
    """Print RUN, a run folder or id; by default the last run here."""
    from stepscope.report.render.terminal.story import print_story
    from stepscope.report.story.narrator import screen_of, story_of
    from stepscope.results.load import load
    from stepscope.store.json_file import json_text

    result = load(run, kinds=["run"])
    if as_json:
        print(json_text(result.document))
    else:
        story = story_of(result) if everything else screen_of(result)
        print_story(story, sys.stdout, detail=everything)
