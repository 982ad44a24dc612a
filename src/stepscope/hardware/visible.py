"""Which of NVML's GPUs a program will know as CUDA device 0."""

from collections.abc import Mapping, Sequence

from stepscope.hardware.nvml import open_gpus


def first_visible(environ: Mapping[str, str], uuids: Sequence[str | None]) -> int | None:
    """NVML's index of CUDA device 0, given every GPU's UUID; None if the program will see no GPU.

    CUDA may put the fastest of unlike GPUs first where NVML counts along the bus; with GPUs of
    one kind, or CUDA_DEVICE_ORDER=PCI_BUS_ID, the two agree.
    """
    value = environ.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return 0 if uuids else None
    first = value.split(",")[0].strip()
    if first.isdecimal():
        return int(first) if int(first) < len(uuids) else None
    if first.startswith("MIG-GPU-"):
        first = first.removeprefix("MIG-").split("/")[0]
    if not first.startswith("GPU-"):
        return None
    # CUDA takes any beginning of a UUID that means one GPU only.
    matches = [i for i, uuid in enumerate(uuids) if uuid and uuid.lower().startswith(first.lower())]
    return matches[0] if len(matches) == 1 else None


def visible_index(environ: Mapping[str, str]) -> int | None:
    """NVML's index of what a program started with `environ` will know as CUDA device 0."""
    gpus = open_gpus()
    place = first_visible(environ, [gpu.uuid() for gpu in gpus])
    return None if place is None else gpus[place].index
