"""Advice for programs that leave loaders and the loop to a trainer of Hugging Face."""

import re
from collections.abc import Mapping
from dataclasses import replace

from stepscope.fixes.trainer_settings import LIBRARIES, trainer_settings, written
from stepscope.record.finding import Finding

_LOADER = "the DataLoader"
_ARGUMENT = re.compile(r"\b(?=(?:num_workers|prefetch_factor|pin_memory|persistent_workers)=)")
_OF_THE_MODEL = ("amp", "compile")


def in_settings(finding: Finding, through: Mapping[tuple[str, int], str], device: str) -> Finding:
    """The finding with the trainer's settings as its advice; as it is where there is no trainer, or
    no such setting. `through`: the libraries that lines of the program call."""
    places = ((place.file or "", place.line or 0) for place in finding.where)
    if not any(through.get(place) in LIBRARIES for place in places):
        return finding
    advice, fix = finding.advice, finding.fix
    if _LOADER in advice:
        advice = _ARGUMENT.sub("dataloader_", advice).replace(_LOADER, "TrainingArguments")
        return replace(finding, advice=advice, edit=None)
    if fix is None or fix.name not in _OF_THE_MODEL or device == "cpu":
        return finding  # the trainers take half precision on other devices only
    settings = trainer_settings(fix.name, fix.value)
    advice = f"Pass {written(settings)} to TrainingArguments."
    return replace(finding, advice=advice, edit=None) if settings else finding
