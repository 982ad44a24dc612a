"""Experiment trackers told in the program's own code to send: variables cannot overrule that."""

import functools
from collections.abc import Callable
from typing import Any

from stepscope.probe.imports import ImportWatch
from stepscope.probe.patches import Patches

_UPLOADS = ("create_commit", "create_repo", "delete_repo")
"""What every upload to the Hugging Face hub goes through."""


def quiet_trackers(watch: ImportWatch, sends: Callable[[str], None]) -> None:
    """Keep what a trial measures out of the user's records; `sends` is told of an upload."""
    patches = Patches()

    def disabled(original: Any) -> Any:
        @functools.wraps(original)
        def init(*args: Any, **kwargs: Any) -> Any:
            return original(*args, **{**kwargs, "mode": "disabled"})

        return init

    def local_client(original: Any) -> Any:
        @functools.wraps(original)
        def init(self: Any, *_: Any, **__: Any) -> None:
            original(self)  # the address in the environment, which is the trial's own

        return init

    def upload(original: Any) -> Any:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            sends("the Hugging Face hub")
            return original(*args, **kwargs)

        return call

    def mlflow_imported(mlflow: Any) -> None:
        for name in ("set_tracking_uri", "set_registry_uri"):
            patches.set(mlflow, name, lambda *_, **__: None)

    def hub_imported(module: Any) -> None:
        for owner in (module.HfApi, module):
            for name in _UPLOADS:
                if hasattr(owner, name):
                    patches.set(owner, name, upload(getattr(owner, name)))

    def change(owner: Any, name: str, how: Callable[[Any], Any]) -> None:
        patches.set(owner, name, how(getattr(owner, name)))

    watch.when_imported("wandb", lambda it: change(it, "init", disabled))
    watch.when_imported("mlflow", mlflow_imported)
    watch.when_imported(
        "mlflow.tracking.client", lambda it: change(it.MlflowClient, "__init__", local_client)
    )
    watch.when_imported("huggingface_hub.hf_api", hub_imported)
