"""What audit events miss: libraries that write in native code, and trackers that upload."""

import functools
import os
from collections.abc import Callable, Iterable
from typing import Any

from stepscope.probe.patches import ImportWatch, Patches

OnWrite = Callable[[Any, bool], None]
"""Called with a path that is about to be written, and whether its content is kept."""


def watch_native_writers(watch: ImportWatch, writes: OnWrite) -> None:
    """Have known native writers tell before they write, each once its module is imported."""
    patches = Patches()

    def tell(owner: Any, name: str, place: int, argument: str, mode: str = "") -> None:
        original = getattr(owner, name, None)
        if original is not None:
            patches.set(owner, name, _telling(original, writes, place, argument, mode))

    def torch_imported(torch: Any) -> None:
        tell(torch._C, "PyTorchFileWriter", 0, "file_name")  # save, package, export
        tell(torch.jit.RecursiveScriptModule, "save", 1, "f")

    watch.when_imported("torch", torch_imported)
    watch.when_imported("safetensors", lambda it: tell(it, "serialize_file", 1, "filename"))
    watch.when_imported("h5py", lambda it: tell(it.File, "__init__", 1, "name", mode="mode"))
    watch.when_imported("cv2", lambda it: tell(it, "imwrite", 0, "filename"))
    watch.when_imported("soundfile", lambda it: tell(it, "write", 0, "file"))
    watch.when_imported("torchvision.io.image", lambda it: tell(it, "write_file", 0, "filename"))
    watch.when_imported(
        "pyarrow.parquet.core", lambda it: tell(it.ParquetWriter, "__init__", 1, "where")
    )
    watch.when_imported("lmdb", lambda it: patches.set(it, "open", _telling_lmdb(it.open, writes)))
    watch.when_imported("pyarrow.feather", lambda it: tell(it, "write_feather", 1, "dest"))


def _telling(original: Any, writes: OnWrite, place: int, argument: str, mode: str) -> Any:
    """A writer that names its file first: the argument so called, or the one at that place. `mode`
    names the argument that follows it and says whether it writes."""

    @functools.wraps(original)
    def write(*args: Any, **kwargs: Any) -> Any:
        path = args[place] if len(args) > place else kwargs.get(argument)
        how = "w"
        if mode:
            how = args[place + 1] if len(args) > place + 1 else kwargs.get(mode, "r")
        if how != "r" and isinstance(path, (str, bytes, os.PathLike)):
            writes(path, how != "w")
        return original(*args, **kwargs)

    return write


def _telling_lmdb(original: Any, writes: OnWrite) -> Any:
    """LMDB locks what it reads in a file beside it, and maps what it may write."""

    @functools.wraps(original)
    def open_environment(path: Any, *args: Any, **kwargs: Any) -> Any:
        name = os.fsdecode(path)
        inside = kwargs.get("subdir", True)
        if kwargs.get("lock", True):
            writes(os.path.join(name, "lock.mdb") if inside else f"{name}-lock", True)
        if not kwargs.get("readonly", False):
            writes(os.path.join(name, "data.mdb") if inside else name, True)
        return original(path, *args, **kwargs)

    return open_environment


_UPLOADS = ("create_commit", "create_repo", "delete_repo")
"""What every upload to the Hugging Face hub goes through."""


def silence_trackers(watch: ImportWatch, sends: Callable[[str], None]) -> None:
    """Keep what a trial measures out of the user's records; `sends` is called on an upload."""
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

    def change(owner: Any, names: Iterable[str], how: Callable[[Any], Any]) -> None:
        for name in names:
            if hasattr(owner, name):
                patches.set(owner, name, how(getattr(owner, name)))

    def hub_imported(module: Any) -> None:
        change(module.HfApi, _UPLOADS, upload)
        change(module, _UPLOADS, upload)

    addresses = ("set_tracking_uri", "set_registry_uri")
    watch.when_imported("wandb", lambda it: change(it, ["init"], disabled))
    watch.when_imported("mlflow", lambda it: change(it, addresses, lambda _: lambda *_, **__: None))
    watch.when_imported(
        "mlflow.tracking.client", lambda it: change(it.MlflowClient, ["__init__"], local_client)
    )
    watch.when_imported("huggingface_hub.hf_api", hub_imported)
