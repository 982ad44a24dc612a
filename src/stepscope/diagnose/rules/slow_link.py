"""The GPU's PCIe link is narrower or slower than the card allows."""

from collections.abc import Iterable

from stepscope.diagnose.case import Case, Rule
from stepscope.diagnose.rules._machine import copies_share, gpu_facts
from stepscope.record.finding import Evidence, Finding

# GB/s a lane, by generation, after the line code's own bits.
_LANE_GB = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
_SLOW = 0.5  # of the card's link: a pinned copy reaches 80 to 90%
_LARGE = 1 << 20


def _slow_pcie_link(case: Case) -> Iterable[Finding]:
    """Where lanes are missing, or a lower generation shows in the copies.

    A generation alone says nothing: an idle GPU lowers it and raises it again under load.
    """
    gpu = gpu_facts(case)
    width, most = gpu.get("pcie_width"), gpu.get("pcie_width_max")
    best = _rate(gpu.get("pcie_generation_max"), most)
    if not width or not most or not best:
        return
    copied = _copied(case)
    narrow, slow = width < most, copied is not None and copied < _SLOW * best
    if not narrow and not (slow and (gpu["pcie_generation"] or 0) < gpu["pcie_generation_max"]):
        return
    share = copies_share(case)
    faster = width / most if narrow else (copied or best) / best
    yield Finding(
        id=SLOW_PCIE_LINK.id,
        title=(
            f"The GPU is connected by {width} of {most} PCIe lanes"
            if narrow
            else f"The GPU's link runs at PCIe {gpu['pcie_generation']} instead of "
            f"{gpu['pcie_generation_max']}"
        ),
        why=(
            f"Copies between host and device could be {1 / faster:.1f} times as fast; in "
            f"{share:.0%} of the step the device does nothing but copy."
        ),
        advice=(
            "Put the card into a slot with all lanes, reseat it, and look at the slot's setting "
            "in the firmware; copying less or while computing helps on any link."
        ),
        share=share,
        evidence=(
            Evidence("link", f"PCIe {gpu.get('pcie_generation')} ×{width}"),
            Evidence("the card's", f"PCIe {gpu.get('pcie_generation_max')} ×{most}"),
            *([Evidence("pinned copies", copied, "GB/s")] if copied is not None else ()),
        ),
        predicted=case.reach(
            case.step_ms * (1 - share * (1 - faster)),
            f"copies that nothing hides, {share:.0%} of the step, take {faster:.0%} as long",
        ),
        effort="outside the program",
        kind="none",
        confidence="medium",
        scope="machine",
    )


SLOW_PCIE_LINK = Rule(
    id="machine.slow_link",
    cause="The GPU's PCIe link is narrower or slower than the card allows.",
    find=_slow_pcie_link,
)


def _rate(generation: int | None, width: int | None) -> float | None:
    """GB/s of a link; None for one nobody knows."""
    lane = _LANE_GB.get(generation or 0)
    return lane * width if lane and width else None


def _copied(case: Case) -> float | None:
    """GB/s of large pinned copies to the device in the window; None without any."""
    for one in (case.trace or {}).get("copies") or []:
        pinned = one["direction"] == "HtoD" and one["memory"] == "pinned"
        if pinned and one["count"] and one["bytes"] / one["count"] >= _LARGE:
            return float(one["bytes_per_s"]) / 1e9
    return None
