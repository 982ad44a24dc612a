"""What code does to make a sample: read it, decode it or change it.

Told by the function that runs, where it is a known library's, else by the text of the program's
line: functions written in C have no frame. Imported into the user's program, so without torch.
"""

import re
from enum import StrEnum


class SampleWork(StrEnum):
    """What making a sample consists of."""

    READING = "reading"
    """Bytes come from a file, a database or the network."""
    DECODING = "decoding"
    """Compressed or serialized bytes become pixels, audio samples or objects."""
    AUGMENTING = "augmenting"
    """Arrays, images or tensors become others."""


_CALLS = (
    # PIL's open() reads the header only; load() decodes, called or not by name.
    (re.compile(r"PIL\.\w+:([\w.]*ImageFile\.load|ImageFile\.load)$"), SampleWork.DECODING),
    (re.compile(r"PIL\.Image:open$"), SampleWork.READING),
    (
        re.compile(
            r"PIL\.Image:Image\.(resize|thumbnail|rotate|crop|transform|transpose|filter|reduce)$|"
            r"PIL\.(ImageOps|ImageEnhance|ImageFilter|ImageChops):"
        ),
        SampleWork.AUGMENTING,
    ),
    (re.compile(r"torchvision\.io\.\w+:read_file$"), SampleWork.READING),
    (
        re.compile(
            r"torchvision\.io\.\w+:(decode_\w+|read_image|read_video)|torchcodec\.|decord\.|av\.|"
            r"torchaudio[\w.]*:load\w*$|(soundfile|librosa|tifffile|imageio|skimage\.io)[\w.]*:|"
            r"matplotlib\.image:imread$|simplejpeg:|turbojpeg:|nibabel[\w.]*:|pydicom[\w.]*:|"
            r"(gzip|bz2|lzma|zlib):|_compression:|(json|json\.decoder|pickle|csv):"
        ),
        SampleWork.DECODING,
    ),
    (
        re.compile(
            r"numpy\.lib[\w.]*:(load|fromfile|genfromtxt|loadtxt|NpzFile\.__getitem__)$|"
            r"numpy\.memmap:|numpy[\w.]*memmap:|pathlib:Path\.(read_|open)|h5py\.|zarr\.|lmdb|"
            r"fsspec\.|s3fs|boto|urllib|requests|http\.client|socket:|tarfile:|zipfile:"
        ),
        SampleWork.READING,
    ),
    (
        re.compile(
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
    return next((work for pattern, work in _CALLS if pattern.match(name)), None)


_LINES = (
    (
        re.compile(
            r"imread\(|imdecode\(|read_image\(|decode\w*\(|\bloads\(|Image\.open\(.*\)\.|"
            r"\.load\(\)|decompress\(|VideoReader\("
        ),
        SampleWork.DECODING,
    ),
    (
        re.compile(
            r"(?<!Image\.)\bopen\(|\bsleep\(|\b\w*load\w*\(|\bread\w*\(|\.read\w*\(|urlopen|h5py|"
            r"requests\.|zarr|lmdb|sqlite|mmap|fromfile\(|from_file|File\(|boto|fsspec|download"
        ),
        SampleWork.READING,
    ),
)


def work_of_line(text: str) -> SampleWork | None:
    """What a line of the program seems to do; None: nothing of this. Both reading and decoding is
    decoding: bytes from a cached file come at once."""
    return next((work for pattern, work in _LINES if pattern.search(text)), None)


_NAMES = (
    (re.compile(r"(?i)decode|jpe?g|imdecode"), SampleWork.DECODING),
    (re.compile(r"(?i)^(load|read|open|fetch)(?!.*tensor)"), SampleWork.READING),
)


def work_of_transform(name: str) -> SampleWork:
    """What a transform does, by the name of its class."""
    return next((w for pattern, w in _NAMES if pattern.search(name)), SampleWork.AUGMENTING)
