"""The settings of Hugging Face's trainers, which make loaders and call the model themselves."""

import ast
import re

from stepscope.fixes.trainer_settings import written
from stepscope.tune.patch_calls import Arguments, callee
from stepscope.tune.patch_source import PatchError, Source

_SETTINGS = re.compile(r"\w*TrainingArguments|(SFT|DPO|GRPO|KTO|ORPO|RLOO|Reward)Config")


def setting(source: Source, wanted: dict[str, str]) -> Arguments:
    """Values for the one call that makes the settings. Raises PatchError."""
    made = [
        node
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Call) and _SETTINGS.fullmatch(callee(node))
    ]
    if len(made) == 1 and all(keyword.arg for keyword in made[0].keywords):
        return Arguments(made[0], wanted)
    where = "several times" if len(made) > 1 else "from arguments, or in another file"
    raise PatchError(f"set {written(wanted)} in the trainer's settings, which are made {where}")


def told(found: Arguments) -> str:
    """What to do, in words."""
    return f"pass {written(found.values)} to {callee(found.call)}"
