"""`stepscope runs`: the results kept here."""

import json
import sys
from pathlib import Path

import click

from stepscope.record.errors import UsageError


class _Listing(click.Group):
    """Without a subcommand it lists; a word that is none names a folder."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not any(word in self.commands or word in ("-h", "--help") for word in args):
            args = ["list", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_Listing, context_settings={"help_option_names": ["-h", "--help"]})
def runs() -> None:
    """List the runs, tunes, batches and benches kept in ./.stepscope, or tidy them up."""


@runs.command("list")
@click.argument("folder", required=False, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def list_runs(folder: Path | None, as_json: bool) -> None:
    """List the results in FOLDER [.stepscope], the newest first."""
    from msgspec import to_builtins

    from stepscope.report.render.terminal.story import print_story
    from stepscope.report.story.inventory import inventory_story
    from stepscope.store.inventory import stored_results

    place = _place(folder)
    found = stored_results(place)
    if as_json:
        document = {"schema": "stepscope.runs/1", "folder": str(place), "results": found}
        print(json.dumps(to_builtins(document), indent=1))
    else:
        print_story(inventory_story(found, str(folder or "")), sys.stdout)


@runs.command()
@click.option("--older-than", required=True, metavar="AGE", help="Such as 12h, 30d or 8w.")
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@click.argument("folder", required=False, type=click.Path(path_type=Path))
def clean(older_than: str, dry_run: bool, folder: Path | None) -> int:
    """Remove results that are older, but for pinned ones and those under way."""
    from stepscope.record.units import format_bytes, plural
    from stepscope.report.text import safe
    from stepscope.store.inventory import old_results, parse_age, remove, stored_results

    age_s = parse_age(older_than)
    place = _place(folder)
    freed = removed = kept = 0
    for one in old_results(stored_results(place), age_s):
        try:
            if not dry_run:
                remove(place, one.name)
        except UsageError as problem:
            kept += 1
            print(f"stepscope: {safe(str(problem))}", file=sys.stderr)
            continue
        removed, freed = removed + 1, freed + one.size_bytes
        print(safe(f"{one.name}  {format_bytes(one.size_bytes)}"))
    word = "would be removed" if dry_run else "removed"
    print(f"{plural(removed, 'result')} {word}, {format_bytes(freed)}", file=sys.stderr)
    return 2 if kept else 0


@runs.command()
@click.argument("run")
@click.option("--off", is_flag=True, help="Let clean remove it again.")
def pin(run: str, off: bool) -> None:
    """Have clean leave RUN alone."""
    from stepscope.store.inventory import pin as pin_folder

    pin_folder(_find(run), not off)


@runs.command()
@click.argument("run")
@click.argument("name")
def rename(run: str, name: str) -> None:
    """Give RUN another NAME: `stepscope show NAME` finds it then."""
    from stepscope.store.inventory import rename as rename_folder

    rename_folder(_find(run), name)


def _place(folder: Path | None) -> Path:
    """The folder asked for. Raises UsageError without one."""
    from stepscope.store.folder import RUNS_FOLDER

    place = folder or Path.cwd() / RUNS_FOLDER
    if not place.is_dir():
        hint = "no such folder" if folder else "no runs here yet. Start one: stepscope run train.py"
        raise UsageError(f"{folder}: {hint}" if folder else hint)
    return place


def _find(name: str) -> Path:
    """A result's folder by its path, or by its name in ./.stepscope or a part that no other has.
    Raises UsageError."""
    from stepscope.store.folder import RUNS_FOLDER
    from stepscope.store.inventory import is_result

    here = Path.cwd() / RUNS_FOLDER
    exact = [one for one in (here / name, Path(name)) if is_result(one)]
    alike = [one for one in here.glob("*") if name in one.name and is_result(one)]
    if exact or len(alike) == 1:
        return (exact or alike)[0]
    raise UsageError(f"no result {name}: stepscope runs lists those here")
