"""Whose code a stack frame is: the program's, a library's, Python's or the observer's own; and what
code does to make a sample.

Paths alone decide whose it is, so that it works for stacks recorded on another machine. What it
does follows from a known library function, else from the text of the program's line: functions
written in C have no frame.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

from stepscope.record.kinds import SampleWork

_OBSERVER = re.compile(
    r"[/\\]stepscope[/\\](?:__init__\.py|__main__\.py|(?:api|magic|quick)\.py|"
    r"(?:record|stats|store|hardware|probe|trace|analyze|fixes|launch|diagnose|measure|tune|batch|"
    r"bench|results|compare|report|serve|cli)[/\\])"
)
_BUILT_IN_PROGRAM = re.compile(r"[/\\]stepscope[/\\]workloads[/\\]")
_INSTALLED = re.compile(
    r"[/\\](?:site|dist)-packages[/\\]|[/\\]torch[/\\](?:nn|optim|utils|cuda)[/\\]"
)
_GENERATED = re.compile(r"[/\\]torchinductor_[^/\\]+[/\\]|[/\\][a-z0-9]{2}[/\\]c[a-z0-9]{40,}\.py$")
"""Files that torch.compile writes, in its own cache folder or in one that the user chose."""
_STANDARD = re.compile(r"[/\\]lib(?:64)?[/\\]python3\.\d+[/\\]|^<frozen ")


class Frame(NamedTuple):
    """One level of a Python stack; line 0 means not known."""

    function: str
    file: str
    line: int


class Owner(NamedTuple):
    """The program's line answerable for something, and what library code it called to do it."""

    file: str  # "" when no frame of the program was on the stack
    line: int
    function: str
    detail: str  # the innermost library frame as `module.function`, "" when there is none


def is_observer(file: str) -> bool:
    """Whether a file belongs to stepscope's own machinery; its built-in programs do not."""
    return _OBSERVER.search(file) is not None


def is_standard(file: str) -> bool:
    """Whether a file belongs to Python's standard library."""
    return _STANDARD.search(file) is not None and _INSTALLED.search(file) is None


def is_program(file: str) -> bool:
    """Whether a file is the user's: neither installed nor generated, nor Python's, nor the
    observer's."""
    if _BUILT_IN_PROGRAM.search(file):
        return True
    if not file or (file.startswith("<") and not file.startswith("<ipython")):
        return False
    return not any(
        pattern.search(file) for pattern in (_OBSERVER, _INSTALLED, _GENERATED, _STANDARD)
    )


def find_owner(frames: Iterable[Frame]) -> Owner:
    """The innermost frame of the program in a stack given innermost first."""
    detail = ""
    for frame in frames:
        if is_program(frame.file):
            return Owner(frame.file, frame.line, frame.function, detail)
        if not detail and _INSTALLED.search(frame.file) and not is_observer(frame.file):
            detail = f"{module_name(frame.file).rpartition('.')[2]}.{frame.function}"
    return Owner("", 0, "", detail)


def module_name(file: str) -> str:
    """The dotted name of an installed module, by its file; else that file's own."""
    parts = re.split(r"[/\\]", re.sub(r"(?:[/\\]__init__)?\.py$", "", file))
    for at in range(len(parts) - 1, 0, -1):
        if re.fullmatch(r"(?:site|dist)-packages|python3\.\d+", parts[at - 1]):
            return ".".join(parts[at:])
    return parts[-1]


# Compiled at first use: this is imported into the user's program.
_CALLS = (
    # PIL's open() reads the header only; load() decodes, called or not by name.
    (r"PIL\.\w+:([\w.]*ImageFile\.load|ImageFile\.load)$", SampleWork.DECODING),
    (r"PIL\.Image:open$", SampleWork.READING),
    (
        (
            r"PIL\.Image:Image\.(resize|thumbnail|rotate|crop|transform|transpose|filter|reduce)$|"
            r"PIL\.(ImageOps|ImageEnhance|ImageFilter|ImageChops):"
        ),
        SampleWork.AUGMENTING,
    ),
    (r"torchvision\.io\.\w+:read_file$", SampleWork.READING),
    (
        (
            r"torchvision\.io\.\w+:(decode_\w+|read_image|read_video)|torchcodec\.|decord\.|av\.|"
            r"torchaudio[\w.]*:load\w*$|(soundfile|librosa|tifffile|imageio|skimage\.io)[\w.]*:|"
            r"matplotlib\.image:imread$|simplejpeg:|turbojpeg:|nibabel[\w.]*:|pydicom[\w.]*:|"
            r"(gzip|bz2|lzma|zlib):|_compression:|(json|json\.decoder|pickle|csv):"
        ),
        SampleWork.DECODING,
    ),
    (
        (
            r"numpy\.lib[\w.]*:(load|fromfile|genfromtxt|loadtxt|NpzFile\.__getitem__)$|"
            r"numpy\.memmap:|numpy[\w.]*memmap:|pathlib:Path\.(read_|open)|h5py\.|zarr\.|lmdb|"
            r"fsspec\.|s3fs|boto|urllib|requests|http\.client|socket:|tarfile:|zipfile:"
        ),
        SampleWork.READING,
    ),
    (
        (
            r"(torchvision\.transforms|torchaudio\.(transforms|functional)|albumentations|kornia|"
            r"imgaug|monai\.transforms|audiomentations|skimage\.transform|scipy\.ndimage)[\w.]*:|"
            r"torch\.nn\.functional:(interpolate|pad|grid_sample)"
        ),
        SampleWork.AUGMENTING,
    ),
)


def work_of_call(module: str, function: str) -> SampleWork | None:
    """What a library's function does, by its module and qualified name; None: not known."""
    name = f"{module}:{function}"
    return next((work for pattern, work in _CALLS if re.match(pattern, name)), None)


_LINES = (
    (
        (
            r"imread\(|imdecode\(|read_image\(|decode\w*\(|\bloads\(|Image\.open\(.*\)\.|"
            r"\.load\(\)|decompress\(|VideoReader\("
        ),
        SampleWork.DECODING,
    ),
    (
        (
            r"(?<!Image\.)\bopen\(|\bsleep\(|\b\w*load\w*\(|\bread\w*\(|\.read\w*\(|urlopen|h5py|"
            r"requests\.|zarr|lmdb|sqlite|mmap|fromfile\(|from_file|File\(|boto|fsspec|download"
        ),
        SampleWork.READING,
    ),
)


def work_of_line(text: str) -> SampleWork | None:
    """What a line of the program seems to do; None: unknown. One that reads and decodes counts as
    decoding: a cached file is read at once."""
    return next((work for pattern, work in _LINES if re.search(pattern, text)), None)


_NAMES = (
    (r"(?i)decode|jpe?g|imdecode", SampleWork.DECODING),
    (r"(?i)^(load|read|open|fetch)(?!.*tensor)", SampleWork.READING),
)


def work_of_transform(name: str) -> SampleWork:
    """What a transform does, by the name of its class."""
    return next((w for pattern, w in _NAMES if re.search(pattern, name)), SampleWork.AUGMENTING)
