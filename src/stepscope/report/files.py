"""Where reports are written: names, checks before the work, and what was written."""

from collections.abc import Sequence
from pathlib import Path

from stepscope.record.errors import UsageError
from stepscope.report.formats import WRITERS
from stepscope.report.job import Job
from stepscope.report.story.blocks import Card, Chart, Table, TimelineView
from stepscope.report.text import plural


def named(whats: Sequence[str], cwd: Path) -> list[str]:
    """What the user named; the last run here where nothing was."""
    if whats:
        return list(whats)
    from stepscope.store.folder import find

    return [str(find(None, cwd))]


def target(out: str | None) -> Path | None:
    """The file that is asked for; None where it is left to us. Raises UsageError."""
    if out is None:
        return None
    path = Path(out)
    if path.suffix.lower() not in WRITERS:
        raise UsageError(f"{out}: a report is written as {', '.join(WRITERS)}")
    return path


def check(path: Path | None, force: bool) -> None:
    """Raise UsageError now rather than after the work."""
    if path is None:
        return
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise UsageError(f"cannot write {path}: name a file in a folder that exists")
    taken = [one for one in (path, *_beside(path)) if one.exists()]
    if taken and not force:
        raise UsageError(f"{taken[0]} exists: --force replaces it")


def _beside(path: Path) -> list[Path]:
    """What else is written with it, as far as that is known beforehand."""
    if path.suffix.lower() == ".tex":
        from stepscope.report.latex_files import tex_files

        return list(tex_files(path))
    if path.suffix.lower() in (".png", ".svg"):
        return sorted(path.absolute().parent.glob(f"{_literal(path.stem)}-*{path.suffix}"))
    return []


def _literal(name: str) -> str:
    return "".join(f"[{one}]" if one in "*?[" else one for one in name)


def check_log(folder: Path | None, force: bool) -> None:
    """Raise UsageError where a log would be mixed with another, which TensorBoard draws as one."""
    if folder is None:
        return
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"cannot write {folder}: it is a file")
    if folder.is_dir() and any(folder.glob("events.out.tfevents.*")) and not force:
        raise UsageError(f"{folder} has a log already: --force adds to it")


def default_path(job: Job, cwd: Path) -> Path:
    """`<name>.html` in the result's folder; here for a trace and for several results."""
    first = job.subjects[0]
    if len(job.subjects) > 1:
        return cwd / "report.html"
    name = first.name.partition(".")[0] if first.kind == "trace" else first.name
    return (job.folders[0] or cwd) / f"{name}.html"


def write(job: Job, path: Path | None, part: str | None, log: Path | None) -> list[Path]:
    """Everything that is asked for. Raises UsageError for what cannot be written."""
    written: list[Path] = []
    try:
        if path is not None:
            written += WRITERS[path.suffix.lower()](job, path, part)
        if log is not None:
            written += _log(job, log)
    except OSError as problem:
        raise UsageError(f"cannot write {problem.filename or path}: {problem.strerror}") from None
    return written


def _log(job: Job, folder: Path) -> list[Path]:
    """One log each, in a folder of its own where there are several."""
    from stepscope.report.story.of import story_of
    from stepscope.report.tensorboard import write_log

    if len(job.subjects) == 1:
        return [write_log(job.subjects[0], job.story, folder)]
    return [
        write_log(one, story_of(one), folder / f"{number}-{one.name}")
        for number, one in enumerate(job.subjects, start=1)
    ]


def contents(job: Job) -> str:
    """What a report holds, in a line."""
    blocks = [block for section in job.story.sections for block in section.blocks]
    counts = ((Card, "finding"), (Chart, "chart"), (Table, "table"))
    parts = [plural(len(job.story.sections), "section")]
    for kind, noun in counts:
        number = sum(isinstance(block, kind) for block in blocks)
        parts += [plural(number, noun)] if number else []
    parts += [plural(one.events, "event") for one in blocks if isinstance(one, TimelineView)]
    return f"  {', '.join(parts)}"
