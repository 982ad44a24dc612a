"""How the GPUs of a machine reach each other."""

from collections.abc import Sequence
from itertools import combinations
from typing import Any, Final

from stepscope.hardware.nvml import Gpu

_NVLINK: Final = 2  # NVML_P2P_CAPS_INDEX_NVLINK
_ANCESTORS: Final = {
    0: "same board",
    10: "one PCIe switch",
    20: "several PCIe switches",
    30: "PCIe host bridge",
    40: "PCIe within a NUMA node",
    50: "PCIe across NUMA nodes",
}


def link_name(nvlink_status: int | None, ancestor: int | None) -> str | None:
    """NVLink where its peer status is good (0), else the PCIe path; None if NVML knows neither."""
    if nvlink_status == 0:
        return "NVLink"
    return None if ancestor is None else _ANCESTORS.get(ancestor, "PCIe")


def topology(gpus: Sequence[Gpu]) -> list[dict[str, Any]]:
    """Every pair of GPUs with its link; empty for fewer than two."""
    return [{"a": a.index, "b": b.index, "link": _link(a, b)} for a, b in combinations(gpus, 2)]


def _link(a: Gpu, b: Gpu) -> str | None:
    return link_name(
        a.ask("P2PStatus", b.handle, _NVLINK), a.ask("TopologyCommonAncestor", b.handle)
    )
