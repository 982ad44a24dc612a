"""Stand-ins for the user's caches: folders of links to their entries, which trials write to
instead. What a trial adds, such as downloads and compiled code, stays for later trials; what it
changed or deleted is restored."""

import os
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path

from stepscope.measure.scratch_copy import Scratch, path_in_scratch, remove_scratch

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
