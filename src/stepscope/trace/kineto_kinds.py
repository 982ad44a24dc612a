"""What a Kineto category means to the timeline."""

from stepscope.record.timeline import DeviceKind, HostKind

DEVICE = 16  # codes from here: DEVICE + DeviceKind; below: HostKind
SYNC = 32
IGNORED = 64

_CODES = {
    "cpu_op": HostKind.OPERATOR,
    "operator": HostKind.OPERATOR,
    "user_annotation": HostKind.ANNOTATION,
    "python_function": HostKind.PYTHON,
    "cuda_runtime": HostKind.RUNTIME,
    "cuda_driver": HostKind.RUNTIME,
    "hip_runtime": HostKind.RUNTIME,
    "hip_driver": HostKind.RUNTIME,
    "xpu_runtime": HostKind.RUNTIME,
    "xpu_driver": HostKind.RUNTIME,
    "mtia_runtime": HostKind.RUNTIME,
    "privateuse1_runtime": HostKind.RUNTIME,
    "privateuse1_driver": HostKind.RUNTIME,
    "runtime": HostKind.RUNTIME,
    "driver": HostKind.RUNTIME,
    "overhead": HostKind.OVERHEAD,
    "kernel": DEVICE + DeviceKind.KERNEL,
    "concurrent_kernel": DEVICE + DeviceKind.KERNEL,
    "privateuse1_kernel": DEVICE + DeviceKind.KERNEL,
    "gpu_memcpy": DEVICE + DeviceKind.COPY,
    "memcpy": DEVICE + DeviceKind.COPY,
    "gpu_memset": DEVICE + DeviceKind.SET,
    "memset": DEVICE + DeviceKind.SET,
    "cuda_sync": SYNC,
}


class Codes(dict[str, int]):
    """Category -> code, whatever its capitals; IGNORED for those that are no work."""

    def __missing__(self, category: str) -> int:
        code = int(_CODES.get(category.lower(), IGNORED))
        self[category] = code
        return code
