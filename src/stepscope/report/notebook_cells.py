"""A story as the cells of a notebook: text, and a line of code for each chart and table."""

from dataclasses import dataclass

from stepscope.record.version import __version__
from stepscope.report.notebook_markdown import block as shown
from stepscope.report.notebook_markdown import text
from stepscope.report.story.blocks import Chart, Section, Story, Table


@dataclass(frozen=True, slots=True)
class Cell:
    """`code`: it is run, else it is Markdown."""

    source: str
    code: bool = False


def cells(story: Story, load: str) -> list[Cell]:
    """All of them. `load` is the code that makes `result`."""
    head = [f"# {text(story.title)}", f"**{text(story.verdict)}**", text(story.subtitle)]
    made = [
        Cell("\n\n".join([*head, f"Made by stepscope {__version__}."])),
        Cell(f"import stepscope\n\n{load}", code=True),
    ]
    for section in story.sections:
        made += _section(section)
    return made


def _section(section: Section) -> list[Cell]:
    made: list[Cell] = []
    words = [f"## {text(section.title)}"]
    for block in section.blocks:
        if isinstance(block, Chart | Table):
            if isinstance(block, Table) and block.title:
                words.append(f"### {text(block.title)}")
            made += [Cell("\n\n".join(words))] if words else []
            words = []
            kind = "chart" if isinstance(block, Chart) else "table"
            made.append(Cell(f"result.{kind}({block.id!r})", code=True))
        else:
            words.append(shown(block))
    return made + ([Cell("\n\n".join(words))] if words else [])
