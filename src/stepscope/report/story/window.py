"""The recorded window: its place in a report, or how to record one."""

from typing import Any

from stepscope.report.run_words import noun
from stepscope.report.story.blocks import Block, Missing, Say, Section, TimelineView
from stepscope.report.story.places import NO_STEPS, run_again

Document = dict[str, Any]
EARLY = "--window-at 2"


def no_window(document: Document, what: str) -> Missing:
    """Why a run has no window, and the command that records one."""
    run, count = document["run"], document["steps"]["count"]
    if not count:
        return Missing(f"{what}: no steps were seen.", NO_STEPS)
    if not run.get("window"):
        return Missing(f"{what}: recording was switched off.", run_again(document, ""))
    if run["under_way"]:
        how = f"stepscope report {run['id']}"
        return Missing(f"{what}: the window is still to come.", how)
    if document["windows"]:
        return Missing(f"{what}: the recording cannot be read.", run_again(document, EARLY))
    words = f"{what}: the program ended after {count:,} {noun(document)}s, before the window."
    return Missing(words, run_again(document, EARLY))


def window_section(analysed: Document, trace: str | None, stretched: bool) -> Section:
    """The timeline. `stretched`: recording slowed the run down, whose own figures stand above."""
    events, steps = analysed["quality"]["kept"], analysed["steps"]
    whole = steps["how"] == "whole"
    words = "The whole recording" if whole else f"{steps['count']:,} recorded steps"
    blocks: list[Block] = []
    if stretched:
        blocks.append(Say(f"{words}; recording stretches the host's times."))
    elif whole:
        blocks.append(Say("No steps were found in the recording: it is shown as one."))
    blocks.append(TimelineView(events, trace))
    return Section("timeline", "Timeline", tuple(blocks))
