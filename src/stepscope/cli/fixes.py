"""`stepscope fixes`: what can be changed in a program while it runs."""

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from stepscope.report.story.fixes import FixDescription


@click.command()
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def fixes(name: str | None, as_json: bool) -> None:
    """List the fixes for `run --fix`, or describe the one called NAME."""
    from stepscope.fixes.registry import all_fixes, fix_named
    from stepscope.report.render.terminal.story import print_story
    from stepscope.report.story.fixes import fix_story, fixes_story

    chosen = [fix_named(name)] if name else all_fixes()
    described = [_described(one) for one in chosen]
    if as_json:
        documents = [asdict(one) for one in described]
        json.dump(documents[0] if name else documents, sys.stdout, indent=1)
        print()
    else:
        print_story(fix_story(described[0]) if name else fixes_story(described), sys.stdout)


def _described(fix: Any) -> "FixDescription":
    from stepscope.report.story.fixes import FixDescription

    value = fix.parse(fix.suggested[0]) if fix.suggested else None
    return FixDescription(
        name=fix.name,
        group=fix.group,
        title=fix.title,
        kind=str(fix.kind),
        effort=fix.effort,
        needs=fix.needs,
        values=tuple(fix.values),
        suggested=tuple(fix.suggested),
        bad_with=tuple(fix.bad_with),
        edit=fix.edit(value, "").words,
    )
