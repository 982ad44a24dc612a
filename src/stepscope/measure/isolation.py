"""Keeps trials from doing harm: turns trackers off, redirects temporary files and caches, refuses
and reports writes outside the scratch copy."""

import fcntl
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from tempfile import gettempdir, mkdtemp

from stepscope.measure.scratch_copy import Scratch, path_in_scratch, remove_scratch
from stepscope.probe.guard.landlock import exposed_in_shared_memory
from stepscope.probe.guard.walls import find_wall
from stepscope.record.errors import UsageError
from stepscope.record.facts import Facts, WriteAction, WroteOutsideFact
from stepscope.record.probe_options import Wall, WriteGuard

_LONGEST_TEMPORARY = 40  # sockets are created there, and their paths are limited to 108 characters

_MPS_FOLDER = "/tmp/nvidia-mps"


_TEMPORARY = "sst-"  # prefix of our temporary folders


def make_temporary() -> Path:
    """A new folder with a short path for the temporary files of a tune's trials. It stays locked
    while this process lives; folders left by killed processes are removed here."""
    usual = gettempdir()
    parent = usual if len(usual) <= _LONGEST_TEMPORARY else "/tmp"
    _remove_stale(parent)
    while True:
        folder = Path(mkdtemp(prefix=_TEMPORARY, dir=parent))
        if _lock(folder) is not None and folder.is_dir():  # nobody has removed it as stale
            return folder


def _remove_stale(parent: str) -> None:
    for entry in os.scandir(parent):
        if not entry.name.startswith(_TEMPORARY) or not entry.is_dir(follow_symlinks=False):
            continue
        if entry.stat(follow_symlinks=False).st_uid != os.getuid():
            continue
        if (lock := _lock(Path(entry.path))) is not None:
            shutil.rmtree(entry.path, ignore_errors=True)
            os.close(lock)


def _lock(folder: Path) -> int | None:
    """Lock a folder until this process ends; None if another process holds it, or it is gone."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def trackers_off(tmp: Path) -> dict[str, str]:
    """Variables that stop experiment trackers from sending; their files go to `tmp`."""
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
        "NEPTUNE_MODE": "offline",  # the quietest level that both of its packages know
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


def choose_wall(allow_writes: bool, unguarded: bool) -> Wall:
    """The wall around trials. Raises UsageError if none protects the user's files and neither
    --allow-writes nor --unguarded was given."""
    wall = Wall.NONE if allow_writes else find_wall()
    if allow_writes or unguarded:
        return wall
    if wall is Wall.NONE:
        raise UsageError(f"nothing here can protect your files from trials: {_WITHOUT}")
    if wall is Wall.LANDLOCK and (exposed := exposed_in_shared_memory()):
        raise UsageError(f"nothing here can protect {exposed[0]} from trials: move it; {_WITHOUT}")
    return wall


_WITHOUT = "--unguarded runs them anyway"


def writable_folders(own: Iterable[Path]) -> tuple[str, ...]:
    """Folders a trial may write besides its scratch copy: our `own`, and the pipes of NVIDIA's
    multi-process service where it runs."""
    pipes = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", _MPS_FOLDER))
    shared = [pipes] if (pipes / "control").is_fifo() else []
    return tuple(dict.fromkeys(str(each.resolve()) for each in (*own, *shared)))


# Stand-ins for the user's caches: folders of links to their entries, which trials write to instead.
# What a trial adds, such as downloads and compiled code, stays for later trials; what it changed or
# deleted is restored.

CACHES_FOLDER = "caches"
StandIn = tuple[str, str]
"""A folder, and the user's folder it stands for."""

_NAMED = (
    *("XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_DATASETS_CACHE"),
    *("HF_ASSETS_CACHE", "HF_XET_CACHE", "HF_MODULES_CACHE", "TRANSFORMERS_CACHE", "TORCH_HOME"),
    *("SENTENCE_TRANSFORMERS_HOME", "TORCH_EXTENSIONS_DIR", "CUDA_CACHE_PATH", "CUPY_CACHE_DIR"),
    *("NUMBA_CACHE_DIR", "MPLCONFIGDIR", "YOLO_CONFIG_DIR", "PYTHONPYCACHEPREFIX"),
)
"""Variables that name a cache."""
_USUAL = {
    "XDG_CACHE_HOME": ".cache",
    "CUDA_CACHE_PATH": ".nv/ComputeCache",
    "CUPY_CACHE_DIR": ".cupy/kernel_cache",
    "MPLCONFIGDIR": ".config/matplotlib",
    "YOLO_CONFIG_DIR": ".config/Ultralytics",
}
"""Where caches are in the user's home if their variable is not set."""
_MOST_LINKS = 50_000  # in a folder


def cache_stand_ins(
    environ: Mapping[str, str], caches: Path, scratch: Scratch
) -> tuple[dict[str, str], list[StandIn]]:
    """(variables that point to the stand-ins, the stand-ins below `caches`). A cache in the working
    directory is already in the scratch copy."""
    home = os.path.expanduser("~")
    places = {name: os.path.join(home, usual) for name, usual in _USUAL.items()}
    places |= {name: os.path.expanduser(environ[name]) for name in _NAMED if environ.get(name)}
    variables: dict[str, str] = {}
    found: list[tuple[Path, Path]] = []
    for name, place in sorted(places.items(), key=lambda one: len(os.path.realpath(one[1]))):
        real = Path(os.path.realpath(place))
        if not os.path.isabs(place) or real.is_relative_to(scratch.original):
            variables[name] = path_in_scratch(str(real), scratch) if os.path.isabs(place) else place
            continue
        outer = next((pair for pair in found if real.is_relative_to(pair[1])), None)
        if outer is None:
            outer = caches / name.lower(), real
            found.append(outer)
        variables[name] = str(outer[0] / real.relative_to(outer[1]))
    return variables, [(str(copy), str(original)) for copy, original in found]


def renew_stand_ins(stand_ins: Iterable[StandIn]) -> None:
    """Update each to the user's current entries plus what trials have added."""
    for copy, original in stand_ins:
        _renew(copy, original)


def _renew(copy: str, original: str) -> None:
    os.makedirs(copy, exist_ok=True)
    try:
        with os.scandir(original) as theirs:
            names = {entry.name for entry in islice(theirs, _MOST_LINKS)}
    except OSError:
        names = set()  # the folder does not exist yet
    with os.scandir(copy) as ours:
        entries = list(ours)
    for entry in entries:
        own = os.path.join(original, entry.name)
        if entry.is_symlink():
            stale = os.readlink(entry.path) != own if entry.name in names else _leads_to(entry, own)
            if stale:
                os.unlink(entry.path)
        elif entry.name not in names:
            continue
        elif not entry.is_dir():
            os.unlink(entry.path)
        elif os.path.isdir(own):
            _renew(entry.path, own)
        else:
            remove_scratch(entry.path)
    for name in names:
        link = os.path.join(copy, name)
        if not os.path.lexists(link):
            os.symlink(os.path.join(original, name), link)


def _leads_to(entry: os.DirEntry[str], own: str) -> bool:
    return os.readlink(entry.path) == own


@contextmanager
def isolated(
    tune: Path, trial: Path, tmp: Path, scratch: Scratch, refuse: bool, wall: Wall
) -> Iterator[tuple[dict[str, str], WriteGuard]]:
    """(variables added to this process's own, the write guard) for one trial in its scratch copy.
    `trial` is its run folder, `tune` the folder of all trials, `tmp` the one for temporary files,
    which is emptied afterwards.

    With `refuse`, a write elsewhere ends the program; else it is only recorded. Compiled code and
    downloads stay for later trials.
    """
    caches = tune / CACHES_FOLDER
    caches.mkdir(exist_ok=True)
    redirected, stand_ins = cache_stand_ins(os.environ, caches, scratch)
    renew_stand_ins(stand_ins)
    try:
        variables = {
            **trackers_off(tmp),
            **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(tmp)),
            **redirected,
            "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
            "TRITON_CACHE_DIR": str(caches / "triton"),
            "PWD": str(scratch.folder),
            "PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0"),
        }
        if paths := os.environ.get("PYTHONPATH"):  # it would point the program to the originals
            inside = (path_in_scratch(path, scratch) for path in paths.split(os.pathsep))
            variables["PYTHONPATH"] = os.pathsep.join(inside)
        yield (
            variables,
            WriteGuard(
                str(scratch.folder),
                str(scratch.original),
                writable_folders((trial, tmp, caches, scratch.root)),
                tuple(stand_ins),
                wall,
                refuse,
            ),
        )
    finally:
        for entry in list(os.scandir(tmp)):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                os.unlink(entry.path)


_DENIED = re.compile(r"(?:Permission denied|Read-only file system)\W*[:\[({\"' ]+(/[^\"'\])}\n]+)")
_ADVICE = "--allow-writes lets trials do so"


def check_writes(facts: Facts, changed: Sequence[str], cwd: Path) -> None:
    """Raise UsageError if a trial wrote outside its scratch copy: that ends the whole tune.
    `changed` are the user's paths that changed without an observed write."""
    for fact in facts.all(WroteOutsideFact):
        who = "the program"
        if fact.file:  # the writing line, as the user would name it
            near = os.path.relpath(fact.file, cwd)
            who = f"{fact.file if near.startswith('..') else near}:{fact.line}"
        where = "" if fact.action is WriteAction.UPLOAD else ", outside the working directory"
        raise UsageError(f"{who} would {fact.action} {fact.path}{where}: {_ADVICE}")
    if changed:
        raise UsageError(f"{changed[0]} was changed while a trial ran: {_ADVICE}")


def check_denied(said: str, scratch: Path) -> None:
    """Raise UsageError if the kernel refused the program a file that the user may write. `said` is
    its last output: native code names its files nowhere else."""
    if found := _DENIED.search(said):
        path = Path(found[1])
        there = next((place for place in (path, *path.parents) if place.exists()), path)
        if not path.is_relative_to(scratch) and os.access(there, os.W_OK):
            where = "outside the working directory"
            raise UsageError(f"the program would write {path}, {where}: {_ADVICE}")
