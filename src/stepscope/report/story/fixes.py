"""The story of `stepscope fixes`: what can be changed in a program while it runs."""

from collections.abc import Sequence
from dataclasses import dataclass

from stepscope.report.story.blocks import Column, Command, Facts, Section, Story, Table, Weight


@dataclass(frozen=True, slots=True)
class FixDescription:
    """What `stepscope fixes` shows of a fix; also its JSON document."""

    name: str
    group: str
    title: str
    kind: str
    effort: str
    needs: str | None
    """The device it needs; None: any."""
    values: tuple[str, ...]
    suggested: tuple[str, ...]
    bad_with: tuple[str, ...]
    edit: str
    """The change in the source, in words."""


KINDS = {
    "exact": "same losses, bit for bit",
    "numeric": "different rounding or random draws",
    "semantic": "changes training itself",
}
_GROUPS = ("data", "waiting", "arithmetic", "launch", "memory", "batch")


def fixes_story(fixes: Sequence[FixDescription]) -> Story:
    """All fixes by group: from the data to the batch, groups from other packages last."""
    sections = []
    for group in dict.fromkeys([*_GROUPS, *(fix.group for fix in fixes)]):
        members = [fix for fix in fixes if fix.group == group]
        table = Table.of(
            group,
            "",
            members,
            (Column("fix"), lambda fix: f"{fix.name}{'=…' if fix.values else ''}"),
            (Column("kind"), lambda fix: fix.kind),
            (Column("what it does"), lambda fix: fix.title),
            shown=len(members),
        )
        sections += [Section(group, group, (table,), Weight.LEAD)] if members else []
    kinds = Section("kinds", "kinds", (Facts(tuple(KINDS.items())),), Weight.LEAD)
    return Story(
        title="fixes",
        sections=(*sections, kinds),
        kind="fixes",
        next=(
            Command("stepscope fixes NAME", "all about one"),
            Command("stepscope run --fix NAME[=VALUE] train.py", "apply it"),
        ),
    )


def fix_story(fix: FixDescription) -> Story:
    """One of them, in full."""
    value = f"={fix.suggested[0]}" if fix.suggested else ""
    shown = (
        ("kind", f"{fix.kind}: {KINDS[fix.kind]}"),
        ("source edit", f"{fix.edit} ({fix.effort})"),
        ("or call", f'stepscope.apply("{fix.name}{value}")'),
        ("needs", f"a {fix.needs.upper()} device" if fix.needs else ""),
        ("values", ", ".join(fix.values)),
        ("try", ", ".join(fix.suggested)),
        ("excludes", ", ".join(fix.bad_with)),
    )
    pairs = tuple((name, text) for name, text in shown if text)
    return Story(
        title=fix.name,
        verdict=fix.title,
        sections=(Section("fix", "", (Facts(pairs),), Weight.LEAD),),
        kind="fix",
        next=(Command(f"stepscope run --fix {fix.name}{value} train.py"),),
    )
