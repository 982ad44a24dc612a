"""What a fix is called in the settings of Hugging Face's trainers.

They make loaders and call the model themselves: a program that uses them has no other place for it.
"""

from typing import Any

LIBRARIES = ("transformers", "trl", "sentence_transformers")
"""Packages with such a trainer."""


def trainer_settings(name: str, value: Any) -> dict[str, str]:
    """The settings that do what a fix does, as they are written; empty where there are none."""
    from stepscope.fixes.workers import usual_workers

    if name == "amp":
        return {value: "True"} if value in ("bf16", "fp16") else {}
    if name == "compile":
        mode, _, dynamic = (value or "default").partition(",")
        own_mode = {"torch_compile_mode": f'"{mode}"'} if mode != "default" else {}
        return {} if dynamic else {"torch_compile": "True"} | own_mode
    of_loaders = {
        "workers": ("dataloader_num_workers", value or usual_workers()),
        "persistent": ("dataloader_persistent_workers", True),
        "pin": ("dataloader_pin_memory", True),
        "drop_last": ("dataloader_drop_last", True),
        "batch": ("per_device_train_batch_size", value),
    }
    return {of_loaders[name][0]: str(of_loaders[name][1])} if name in of_loaders else {}


def written(settings: dict[str, str]) -> str:
    """Settings as one would say them."""
    return " and ".join(f"{name}={value}" for name, value in settings.items())
