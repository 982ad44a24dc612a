"""How a trial is kept from doing harm: trackers off, temporary files and caches redirected, writes
outside the scratch copy refused and reported."""

import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import gettempdir, mkdtemp

from stepscope.measure.scratch_copy import Scratch, path_in_scratch
from stepscope.record.errors import UsageError
from stepscope.record.facts import Facts, WriteAction, WroteOutsideFact
from stepscope.record.probe_options import WriteGuard

_LONGEST_TEMPORARY = 40  # sockets are made in there, and their paths have 108 characters at most

_CACHES = (".cache", ".nv", ".triton", ".cupy", ".config/matplotlib", ".config/Ultralytics")
"""In the user's home: may be written, for they only spare work."""
_CACHE_VARIABLES = (
    *("XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_DATASETS_CACHE"),
    *("HF_ASSETS_CACHE", "HF_XET_CACHE", "TRANSFORMERS_CACHE", "TORCH_HOME"),
    *("TORCH_EXTENSIONS_DIR", "CUDA_CACHE_PATH", "CUPY_CACHE_DIR", "NUMBA_CACHE_DIR"),
    *("MPLCONFIGDIR", "PYTHONPYCACHEPREFIX", "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"),
)
_SHARED_PIPES = ("/tmp/nvidia-mps", "/var/log/nvidia-mps")


def make_temporary() -> Path:
    """A new folder for the temporary files of a tune's trials, with a short path."""
    usual = gettempdir()
    return Path(mkdtemp(prefix="sst-", dir=usual if len(usual) <= _LONGEST_TEMPORARY else "/tmp"))


def trackers_off(tmp: Path) -> dict[str, str]:
    """Variables under which experiment trackers send nothing; what they keep goes to `tmp`."""
    records = (tmp / "mlflow").absolute().as_uri()
    return {
        "WANDB_MODE": "disabled",
        "WANDB_SILENT": "true",
        "WANDB_DATA_DIR": str(tmp / "wandb"),
        "MLFLOW_TRACKING_URI": records,
        "MLFLOW_REGISTRY_URI": records,
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DISABLE_MLFLOW_INTEGRATION": "TRUE",  # of transformers
        "COMET_MODE": "DISABLED",  # of transformers
        "COMET_AUTO_LOG_DISABLE": "true",
        "COMET_START_ONLINE": "false",
        "COMET_OFFLINE_DIRECTORY": str(tmp / "comet"),
        "NEPTUNE_MODE": "offline",  # the quietest that both of its packages know
        "NEPTUNE_DATA_DIRECTORY": str(tmp / "neptune"),
        "NEPTUNE_LOG_DIRECTORY": str(tmp / "neptune"),
        "CLEARML_OFFLINE_MODE": "1",
        "CLEARML_CACHE_DIR": str(tmp / "clearml"),
        "TRACKIO_DIR": str(tmp / "trackio"),
        "TRACKIO_SPACE_ID": "",
        "SWANLAB_MODE": "disabled",
        "DVCLIVE_TEST": "true",
        "DVC_STUDIO_OFFLINE": "true",
        "__AIM_REPO_NAME__": ".aim-trial",
        "CODECARBON_SAVE_TO_API": "false",
        "CODECARBON_SAVE_TO_FILE": "false",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "DO_NOT_TRACK": "1",
    }


def cache_environment(tmp: Path, caches: Path) -> dict[str, str]:
    """Variables that send temporary files to `tmp`, and compiled code to `caches`. Caches that the
    user has at their usual place in his home stay there."""
    found = {
        **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(tmp)),
        "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
        "TRITON_CACHE_DIR": str(caches / "triton"),
    }
    home = Path(os.path.expanduser("~"))
    for name, usual in (
        ("XDG_CACHE_HOME", home / ".cache"),
        ("CUDA_CACHE_PATH", home / ".nv"),
        ("MPLCONFIGDIR", home / ".config/matplotlib"),
        ("YOLO_CONFIG_DIR", home / ".config/Ultralytics"),
    ):
        if name not in os.environ and not usual.is_dir():
            found[name] = str(caches / name.lower())
    return found


def writable_folders(own: Iterable[Path], original: Path) -> tuple[str, ...]:
    """Folders a trial may write besides its scratch copy: our `own`, and caches of the user's. None
    of the user's that his working directory, `original`, lies in; missing ones are left out."""
    home = Path(os.path.expanduser("~"))
    named = [os.environ[name] for name in _CACHE_VARIABLES if os.environ.get(name)]
    usual = [home / name for name in _CACHES]
    theirs = [*map(Path, named), *usual, *map(Path, _SHARED_PIPES)]
    theirs += [inner for each in theirs for inner in _linked_folders(each)]
    real = [each.resolve() for each in theirs if each.is_dir()]
    work = original.resolve()
    apart = [each for each in real if each != home.resolve() and each not in (work, *work.parents)]
    return tuple(dict.fromkeys(str(each) for each in (*(path.resolve() for path in own), *apart)))


def _linked_folders(folder: Path) -> list[Path]:
    """Links in a cache to folders elsewhere, as to a larger disk."""
    try:
        return [inner for inner in folder.iterdir() if inner.is_symlink() and inner.is_dir()]
    except OSError:
        return []


CACHES_FOLDER = "caches"


@contextmanager
def isolated(
    tune: Path, trial: Path, tmp: Path, scratch: Scratch, refuse: bool
) -> Iterator[tuple[dict[str, str], WriteGuard]]:
    """(variables that come on top of this process's own, the guard over what is written) for one
    trial in its scratch copy: `trial` is its run folder, `tune` the folder of them all,
    `tmp` the one for temporary files, which is empty again afterwards.

    With `refuse`, a write elsewhere ends the program; else it is only noted. What was compiled
    stays for the trials that follow.
    """
    caches = tune / CACHES_FOLDER
    caches.mkdir(exist_ok=True)
    try:
        variables = {
            **trackers_off(tmp),
            **cache_environment(tmp, caches),
            "PWD": str(scratch.folder),
            "PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0"),
        }
        if paths := os.environ.get("PYTHONPATH"):  # it would lead the program to the originals
            inside = (path_in_scratch(path, scratch) for path in paths.split(os.pathsep))
            variables["PYTHONPATH"] = os.pathsep.join(inside)
        allowed = writable_folders((trial, tmp, caches, scratch.root), scratch.original)
        guard = WriteGuard(str(scratch.folder), str(scratch.original), allowed, refuse)
        yield variables, guard
    finally:
        for entry in list(os.scandir(tmp)):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                os.unlink(entry.path)


_DENIED = re.compile(r"Permission denied\W*[:\[({\"' ]+(/[^\"'\])}\n]+)")
_ADVICE = "--allow-writes lets trials do so"


def check_writes(facts: Facts, changed: Sequence[str], cwd: Path) -> None:
    """Raise UsageError where a trial reached outside its scratch copy: that ends the whole tune.
    `changed` are paths of the user's that are not as they were, though nobody was seen to write."""
    for fact in facts.all(WroteOutsideFact):
        who = "the program"
        if fact.file:  # the line that writes, as the user would name it
            near = os.path.relpath(fact.file, cwd)
            who = f"{fact.file if near.startswith('..') else near}:{fact.line}"
        where = "" if fact.action is WriteAction.UPLOAD else ", outside the working directory"
        raise UsageError(f"{who} would {fact.action} {fact.path}{where}: {_ADVICE}")
    if changed:
        raise UsageError(f"{changed[0]} was changed while a trial ran: {_ADVICE}")


def check_denied(said: str, scratch: Path) -> None:
    """Raise UsageError where the kernel refused a program a file that the user may write. `said` is
    its last output: native code names its files nowhere else."""
    if found := _DENIED.search(said):
        path = Path(found[1])
        there = next((place for place in (path, *path.parents) if place.exists()), path)
        if not path.is_relative_to(scratch) and os.access(there, os.W_OK):
            where = "outside the working directory"
            raise UsageError(f"the program would write {path}, {where}: {_ADVICE}")
