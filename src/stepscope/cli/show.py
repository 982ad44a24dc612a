"""`stepscope show`: print an earlier result."""

import sys

import click


@click.command()
@click.argument("result", required=False)
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@click.option("--all", "everything", is_flag=True, help="Every finding, and what is fine.")
def show(result: str | None, as_json: bool, everything: bool) -> None:
    """Print RESULT, a run, tune, bench, batch or trace (file, folder or id); by default the last
    run here."""
    from stepscope.report.render.terminal.story import print_story
    from stepscope.report.story.narrator import screen_of, story_of
    from stepscope.results.load import load
    from stepscope.store.json_file import json_text

    loaded = load(result)
    if as_json:
        print(json_text(loaded.document))
    else:
        story = story_of(loaded) if everything else screen_of(loaded)
        print_story(story, sys.stdout, detail=everything)
