"""The environment of trials: trackers off, temporary files and caches where they do no harm."""

import os
from collections.abc import Iterable
from pathlib import Path
from tempfile import gettempdir, mkdtemp

_LONGEST_TEMPORARY = 40
"""Sockets are made in there, and their paths have 108 characters at most."""

_CACHES = (".cache", ".nv", ".triton", ".cupy", ".config/matplotlib", ".config/Ultralytics")
"""In the user's home: may be written, for they only spare work."""
_CACHE_VARIABLES = (
    "XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_DATASETS_CACHE",
    "HF_ASSETS_CACHE", "HF_XET_CACHE", "TRANSFORMERS_CACHE", "TORCH_HOME", "TORCH_EXTENSIONS_DIR",
    "CUDA_CACHE_PATH", "CUPY_CACHE_DIR", "NUMBA_CACHE_DIR", "MPLCONFIGDIR", "PYTHONPYCACHEPREFIX",
    "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY",
)  # fmt: skip
_SHARED_PIPES = ("/tmp/nvidia-mps", "/var/log/nvidia-mps")


def temporary() -> Path:
    """A new folder for the temporary files of a tune's trials, with a short path."""
    usual = gettempdir()
    return Path(mkdtemp(prefix="sst-", dir=usual if len(usual) <= _LONGEST_TEMPORARY else "/tmp"))


def quiet_environment(tmp: Path) -> dict[str, str]:
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


def places_environment(tmp: Path, caches: Path) -> dict[str, str]:
    """Variables that send temporary files to `tmp`, and compiled code to `caches`.

    Caches that the user has at their usual place in his home stay there.
    """
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


def allowed_places(own: Iterable[Path], original: Path) -> tuple[str, ...]:
    """Folders a trial may write besides its scratch copy: our `own`, and caches of the user's.

    None of the user's that his working directory, `original`, lies in; missing ones are left out.
    """
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
