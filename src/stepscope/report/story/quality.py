"""How far to trust a report: what was not seen, mended or left out."""

from typing import Any

from stepscope.report.quality import quality_notes
from stepscope.report.story.blocks import Block, Facts, Say, Section

Document = dict[str, Any]


def quality_section(analysed: Document | None, problems: list[str]) -> Section:
    """Notes and problems, a sentence each. `analysed`: the recording; None where there is none."""
    notes = [*problems, *(quality_notes(analysed) if analysed is not None else ())]
    blocks: list[Block] = [Say(_sentence(note)) for note in notes]
    if not notes:
        blocks.append(Say("Nothing stands against these figures."))
    if analysed is not None:
        quality = analysed["quality"]
        pairs = (
            ("events in the recording", f"{quality['read']:,}"),
            ("of them shown", f"{quality['kept']:,}"),
        )
        blocks.append(Facts(pairs))
    return Section("quality", "How far to trust this", tuple(blocks))


def _sentence(note: str) -> str:
    text = note[:1].upper() + note[1:]
    return text if text.endswith((".", "!", "?")) else f"{text}."
