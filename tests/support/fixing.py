"""Fixes in the test's own process: put in place, looked at, taken out again."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic_ns
from typing import Any

from stepscope.fixes.apply import apply_fixes, install_fix
from stepscope.fixes.base import FixContext
from stepscope.fixes.registry import parse_fixes
from stepscope.launch.bootstrap import check_fixes
from stepscope.probe.boot import watch_forks
from stepscope.probe.observer import Observer
from stepscope.probe.patches import ImportWatch
from stepscope.record.facts import FixChecksFact
from stepscope.record.fix import FixOutcome, NotApplied, fix_outcomes
from stepscope.record.fix_words import outcome_json
from stepscope.record.probe_options import ProbeOptions
from stepscope.store.json_lines import read_facts


class Fixed:
    """An observed stretch with fixes on."""

    def __init__(self, folder: Path, asked: tuple[str, ...], clocks: bool) -> None:
        self.folder = folder
        options = ProbeOptions(str(folder), monotonic_ns(), window=0, fixes=asked, clocks=clocks)
        self.observer = Observer(options)
        self.off: dict[str, FixContext] = {}

    def switchable(self, asked: str) -> FixContext:
        """A fix, installed and off."""
        [(fix, value)] = parse_fixes([asked])
        context = FixContext(fix, self.observer.seams, value, on=False)
        assert install_fix(context)
        return context

    def checks(self) -> dict[str, NotApplied | None]:
        """What fixes last said of the program, by name."""
        last = read_facts(self.folder / "facts.jsonl").last(FixChecksFact)
        return {
            one.name: None if one.refused is None else NotApplied.from_json(one.refused, one.text)
            for one in (last.checks if last else ())
        }

    def fixes(self) -> dict[str, dict[str, Any]]:
        """What became of each fix, by name, as `show --json` tells it."""
        return {name: outcome_json(one) for name, one in self.outcomes().items()}

    def outcomes(self) -> dict[str, FixOutcome]:
        """The same as records."""
        facts = read_facts(self.folder / "facts.jsonl")
        return {one.name: one for one in fix_outcomes(facts.fixes)}


@contextmanager
def fixed(
    folder: Path, *asked: str, clocks: bool = True, checks: bool = False, off: Iterable[str] = ()
) -> Iterator[Fixed]:
    """`with fixed(tmp_path, "pin", "workers=2") as run:` — and out of torch again at the end.
    `checks`: fixes are asked whether they would apply. `off`: others, in `run.off`, that are
    installed and act once they are switched on."""
    folder.mkdir(parents=True, exist_ok=True)
    run = Fixed(folder, asked, clocks)
    apply_fixes(asked, run.observer.seams)
    run.off = {one: run.switchable(one) for one in off}
    if checks:
        check_fixes(run.observer)
    watch = ImportWatch(monotonic_ns())
    run.observer.install(watch)
    watch.install()
    watch_forks(run.observer.forked)
    try:
        yield run
    finally:
        run.observer.end()
