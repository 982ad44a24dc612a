"""Which kernels talk to other devices: told by their name or by the collective they belong to."""

import re

from stepscope.analyze.timeline.namematch import names_that
from stepscope.record.timeline import Column, DeviceKind, Timeline

_COMMUNICATES = re.compile(
    r"nccl|rccl|gloo|nvshmem|mscclpp|cross_device_reduce|(one|two)_?shot_all_?reduce"
    r"|multimem_(all|one|two)|deep_?ep::",
    re.IGNORECASE,
)


def communication_kernels(timeline: Timeline) -> Column:
    """A bool per device event; copies between devices are copies, not communication."""
    device = timeline.device
    named = names_that(timeline, device.name, _COMMUNICATES.search)
    talks: Column = (device.kind == DeviceKind.KERNEL) & (named | (device.collective >= 0))
    return talks
