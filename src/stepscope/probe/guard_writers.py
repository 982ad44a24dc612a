"""Writers that Python's audit events do not show: they open their files in native code."""

import functools
import os
from collections.abc import Callable
from typing import Any

from stepscope.probe.imports import ImportWatch
from stepscope.probe.patches import Patches

Writes = Callable[[Any, bool], None]
"""Called with a path that is about to be written, and whether its content is kept."""


def watch_writers(watch: ImportWatch, writes: Writes) -> None:
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


def _telling(original: Any, writes: Writes, place: int, argument: str, mode: str) -> Any:
    """A writer that names its file first: the argument so called, or the one at that place.

    `mode` names the argument that follows it and says whether it writes at all.
    """

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


def _telling_lmdb(original: Any, writes: Writes) -> Any:
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
