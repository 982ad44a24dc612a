"""A study on a terminal and as Markdown: each kind of study has its own file."""

from importlib import import_module
from typing import IO, Any

from rich.text import Text

from stepscope.report.bars import title
from stepscope.report.lines import console_for, show_lines
from stepscope.report.text import safe

Document = dict[str, Any]

_WIDEST = 80


def print_study(document: Document, stream: IO[str]) -> None:
    """The screen a study ends with: the answer first, the next command last."""
    study = document["study"]
    console = console_for(stream)
    width = min(console.width if stream.isatty() else _WIDEST, _WIDEST)
    torch = ((document.get("machine") or {}).get("torch") or {}).get("version")
    parts = [
        f"study {safe(study['name'])}",
        safe(study["model"]),
        f"batch {study['batch']:,}",
        *_of(study).about(study),
        f"torch {safe(str(torch)).partition('+')[0]}" if torch else None,
    ]
    lines = [*title([part for part in parts if part], width), Text(), *_of(study).screen(study)]
    notes = [*study["notes"], *(document.get("notes") or [])]
    lines += [Text(), *(Text(f"note: {safe(str(note))}", "yellow") for note in notes)] * bool(notes)
    lines += [Text(), Text(f"Next:  {_of(study).following(study)}")]
    show_lines(console, [Text(), *lines], width)


def markdown_study(document: Document) -> str:
    """The study as a section; needs nothing but `study` of the document."""
    study = document["study"]
    return "\n".join(_of(study).page(study)).rstrip() + "\n"


def _of(study: Document) -> Any:
    """The module that draws this kind: `about`, `screen`, `page` and `following` of a study."""
    name = {"cpu-gpu": "cpu_gpu", "memory": "memory"}[study["name"]]
    return import_module(f"stepscope.report.bench_study_{name}")
