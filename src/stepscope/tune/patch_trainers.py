"""The settings of Hugging Face's trainers, which make loaders and call the model themselves."""

import ast
import re
from collections.abc import Mapping
from typing import Any

from stepscope.fixes.base import Fix
from stepscope.tune.patch_calls import Arguments, arguments, callee
from stepscope.tune.patch_source import PatchError, Source, heads

_LIBRARIES = ("transformers", "trl", "sentence_transformers")
_SETTINGS = re.compile(r"\w*TrainingArguments|(SFT|DPO|GRPO|KTO|ORPO|RLOO|Reward)Config")
_RUNS = ("train", "evaluate", "predict")
_OF_LOADERS = {
    "num_workers": "dataloader_num_workers",
    "persistent_workers": "dataloader_persistent_workers",
    "pin_memory": "dataloader_pin_memory",
    "drop_last": "dataloader_drop_last",
    "batch_size": "per_device_train_batch_size",
}
"""Arguments of a DataLoader, and the settings that a trainer makes them from."""


def values(fix: Fix, value: Any) -> dict[str, str]:
    """The settings that do what a fix does; none where there are none."""
    if fix.name == "amp":
        return {value: "True"}
    if fix.name == "compile":
        mode, _, dynamic = value.partition(",")
        own_mode = {"torch_compile_mode": f'"{mode}"'} if mode != "default" else {}
        return {} if dynamic else {"torch_compile": "True"} | own_mode
    call = ast.parse("DataLoader()").body[0]
    given = [one.values for one in arguments(call, fix.edit(value, "DataLoader()"))]
    return {
        _OF_LOADERS[name]: text
        for one in given
        for name, text in one.items()
        if name in _OF_LOADERS
    }


def runs_there(source: Source, line: int) -> bool:
    """Whether a trainer is told to run in the statement of a line."""
    statement = source.statement(line)
    return (
        statement is not None
        and any(
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in _RUNS
            for node in ast.walk(heads(statement))
        )
        and any(_imports(node) for node in ast.walk(source.tree))
    )


def setting(source: Source, wanted: Mapping[str, str]) -> Arguments:
    """Values for the one call that makes the settings. Raises PatchError."""
    made = [
        node
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Call) and _SETTINGS.fullmatch(callee(node))
    ]
    if len(made) == 1 and all(keyword.arg for keyword in made[0].keywords):
        return Arguments(made[0], dict(wanted))
    where = "several times" if len(made) > 1 else "from arguments, or in another file"
    raise PatchError(f"set {_written(wanted)} in the trainer's settings, which are made {where}")


def told(found: Arguments) -> str:
    """What to do, in words."""
    return f"pass {_written(found.values)} to {callee(found.call)}"


def _written(wanted: Mapping[str, str]) -> str:
    return " and ".join(f"{name}={value}" for name, value in wanted.items())


def _imports(node: ast.AST) -> bool:
    if isinstance(node, ast.ImportFrom):
        return (node.module or "").partition(".")[0] in _LIBRARIES
    return isinstance(node, ast.Import) and any(
        alias.name.partition(".")[0] in _LIBRARIES for alias in node.names
    )
