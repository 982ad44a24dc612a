"""`stepscope fixes`: what can be changed in a program while it runs."""

import json
import sys
from typing import Any

import click


@click.command()
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def fixes(name: str | None, as_json: bool) -> None:
    """List the fixes for `run --fix`, or show all about the one called NAME."""
    from stepscope.fixes.registry import all_fixes, fix_named
    from stepscope.report.render.terminal.story import print_story
    from stepscope.report.story.fixes import fix_story, fixes_story

    chosen = [fix_named(name)] if name else all_fixes()
    documents = [_described(one) for one in chosen]
    if as_json:
        json.dump(documents[0] if name else documents, sys.stdout, indent=1)
        print()
    else:
        print_story(fix_story(documents[0]) if name else fixes_story(documents), sys.stdout)


def _described(fix: Any) -> dict[str, Any]:
    value = fix.parse(fix.suggested[0]) if fix.suggested else None
    edit = fix.edit(value, "")
    return {
        "name": fix.name,
        "group": fix.group,
        "title": fix.title,
        "kind": str(fix.kind),
        "effort": fix.effort,
        "needs": fix.needs,
        "values": list(fix.values),
        "suggested": list(fix.suggested),
        "bad_with": list(fix.bad_with),
        "edit": edit.words,
    }
