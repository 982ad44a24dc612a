"""Machine rules: cores, governor, NUMA, other processes, power, PCIe link, throttling."""

from collections.abc import Iterable
from typing import Any

from stepscope.diagnose.case import Case, Rule
from stepscope.hardware.gpus import ThrottleReason
from stepscope.hardware.processor import cpu_list
from stepscope.record.finding import Evidence, Finding, FixRef


def _gpu_used(case: Case) -> dict[str, Any]:
    """What the GPU did during the run; empty without one."""
    return dict((case.show or {}).get("gpu") or {})


def _gpu_facts(case: Case) -> dict[str, Any]:
    """What the GPU is: link, limits, place; empty where not known."""
    gpus = _machine(case).get("gpus") or []
    return dict(gpus[0]) if gpus else {}


def _cpu_facts(case: Case) -> dict[str, Any]:
    """What the processor is; empty where not known."""
    return dict(_machine(case).get("cpu") or {})


def _waiting_for_host(case: Case) -> float:
    """The share of the step in which the device had nothing to do for the host's sake, 0 to 1.

    On the CPU the whole step is the host's.
    """
    if case.device != "cuda":
        return 1.0
    trace = case.trace or {}
    wall = (trace.get("breakdown_ns") or {}).get("wall") or 0
    idle = trace.get("idle_ns") or {}
    if not wall:
        return 0.0
    return sum(idle.get(cause) or 0 for cause in ("host", "loader", "synchronisation")) / wall


def _copies_share(case: Case) -> float:
    """The share of the step in which the device only copied, 0 to 1."""
    told = (case.trace or {}).get("breakdown_ns") or {}
    return (told.get("exposed_copy") or 0) / told["wall"] if told.get("wall") else 0.0


def _data_wait_share(case: Case) -> float:
    """The share of the step spent waiting for the loader, 0 to 1."""
    return case.phases.get("data_wait", 0.0) / case.step_ms if case.step_ms else 0.0


def _machine(case: Case) -> dict[str, Any]:
    return dict(((case.show or {}).get("config") or {}).get("machine") or {})


_CORES_BUSY = 0.85
_LEAST_DATA_WAIT = 0.1


def _few_cores(case: Case) -> Iterable[Finding]:
    """Where all usable cores are busy and the GPU waits for data all the same."""
    cpu = _cpu_facts(case)
    usable = float(cpu.get("usable_cores") or 0)
    percent = ((case.show or {}).get("host") or {}).get("cpu_percent")
    if case.device != "cuda" or not usable or percent is None:
        return
    share = _data_wait_share(case)
    if (
        percent < _CORES_BUSY * 100 * usable
        or share < _LEAST_DATA_WAIT
        or _waiting_for_host(case) < _LEAST_DATA_WAIT
    ):
        return
    logical = float(cpu.get("logical_cores") or usable)
    limited = logical > usable
    yield Finding(
        id=FEW_CORES.id,
        title=f"All {usable:g} usable cores are busy making data",
        why=(
            f"The program and its workers use {percent / 100:.1f} of {usable:g} cores, and the GPU "
            f"still waits for data {share:.0%} of the step."
        ),
        advice=(
            f"The machine has {logical:g} cores; ask for more of them (container or job limits). "
            if limited
            else "More workers will not help. "
        )
        + "Make samples cheaper: decode and resize once, or augment on the GPU.",
        share=share,
        evidence=(
            Evidence("cores in use", percent / 100),
            Evidence("usable cores", usable),
            Evidence("cores of the machine", logical),
            Evidence("waiting for data", share * 100, "%"),
        ),
        effort="outside the program" if limited else "some lines",
        kind="none",
        confidence="medium",
        scope="machine",
    )


FEW_CORES = Rule(
    id="machine.few_cores",
    cause="The processor cores this program may use cannot feed its GPU.",
    find=_few_cores,
)


_SAVING = ("powersave", "conservative")
_LEAST_HOST_SHARE = 0.1


def _cpu_governor(case: Case) -> Iterable[Finding]:
    """Where a saving governor rules and the host decides a tenth of the step or more."""
    governor = _cpu_facts(case).get("governor")
    share = _waiting_for_host(case)
    if governor not in _SAVING or share < _LEAST_HOST_SHARE:
        return
    yield Finding(
        id=CPU_GOVERNOR.id,
        title=f"The CPU governor is {governor}",
        why=(
            f"The host decides {share:.0%} of the step, and its cores raise their clocks late or "
            "not at all under this setting (some drivers' powersave does, so measure)."
        ),
        advice="As root: cpupower frequency-set -g performance; then measure again.",
        share=0.0,
        evidence=(
            Evidence("governor", str(governor)),
            Evidence("of the step that the host decides", share * 100, "%"),
        ),
        effort="outside the program",
        kind="none",
        confidence="low",
        scope="machine",
    )


CPU_GOVERNOR = Rule(
    id="machine.governor",
    cause="The processor is set to save power while the step waits for it.",
    find=_cpu_governor,
)


_LEAST_NUMA_SHARE = 0.05  # of the step that host or copies decide


def _numa_remote(case: Case) -> Iterable[Finding]:
    """Where there are several nodes, the GPU's is known, and the program may leave its cores."""
    gpu, cpu = _gpu_facts(case), _cpu_facts(case)
    nodes, node = int(cpu.get("numa_nodes") or 1), gpu.get("numa_node")
    near = len(cpu_list(str(gpu.get("cpu_affinity") or "")))
    usable = float(cpu.get("usable_cores") or 0)
    if case.device != "cuda" or nodes < 2 or node is None or not near or usable <= near:
        return
    share = min(1.0, _copies_share(case) + _waiting_for_host(case))
    if share < _LEAST_NUMA_SHARE:
        return
    yield Finding(
        id=NUMA_REMOTE.id,
        title=f"The program is not held on the GPU's NUMA node {node}",
        why=(
            f"It may use {usable:.0f} cores on {nodes} nodes, and only {near} are next to the GPU: "
            "launches and copies from the others go over the link between the sockets."
        ),
        advice=f"Start it with numactl --cpunodebind={node} --membind={node}, or try the fix.",
        share=0.0,
        evidence=(
            Evidence("NUMA nodes", nodes),
            Evidence("cores next to the GPU", str(gpu["cpu_affinity"])),
            Evidence("usable cores", usable),
            Evidence("of the step that host and copies decide", share * 100, "%"),
        ),
        fix=FixRef("affinity"),
        effort="one line",
        kind="exact",
        confidence="low",
        scope="machine",
    )


NUMA_REMOTE = Rule(
    id="machine.numa_remote",
    cause="The program may run on cores far from its GPU.",
    find=_numa_remote,
)


def _other_gpu_process(case: Case) -> Iterable[Finding]:
    """At any that was seen while steps ran."""
    gpu = _gpu_used(case)
    others = int(gpu.get("other_processes") or 0)
    if others < 1:
        return
    many = f"{others} other processes use" if others > 1 else "Another process uses"
    yield Finding(
        id=OTHER_GPU_PROCESS.id,
        title=f"{many} this GPU",
        why=(
            "They take turns with this program's kernels and share its memory, so steps are longer "
            "than they need be, by an amount nobody can tell from here."
        ),
        advice="Find them with nvidia-smi; wait, or choose a free GPU by CUDA_VISIBLE_DEVICES.",
        share=0.0,
        evidence=(Evidence("other processes", others),),
        effort="outside the program",
        kind="none",
        confidence="high",
        scope="machine",
    )


OTHER_GPU_PROCESS = Rule(
    id="machine.other_process",
    cause="Another process computes on the same GPU.",
    find=_other_gpu_process,
)


_NEAR_POWER_LIMIT = 0.85  # of the limit: a cap met only for moments says little of the step


def _power_cap(case: Case) -> Iterable[Finding]:
    """Where the cap was met and the mean power lies close to it."""
    gpu, limit = _gpu_used(case), _gpu_facts(case).get("power_limit_w")
    power = gpu.get("power_w")
    if ThrottleReason.POWER_CAP not in (gpu.get("throttled_by") or []) or not power or not limit:
        return
    if power < _NEAR_POWER_LIMIT * limit:
        return
    yield Finding(
        id=POWER_CAP.id,
        title=f"The GPU runs into its power limit of {limit:.0f} W",
        why=(
            f"It drew {power:.0f} W on average and lowered its clocks to stay within "
            f"{limit:.0f} W: the device gives what it may."
        ),
        advice=(
            "Raise the limit where the card's maximum allows (nvidia-smi -pl, as root); work with "
            "fewer bytes and bits (bf16, fused kernels) needs less power for the same step."
        ),
        share=0.0,
        evidence=(
            Evidence("mean power", power, "W"),
            Evidence("limit", limit, "W"),
            *([Evidence("clock", gpu["sm_mhz"], "MHz")] if gpu.get("sm_mhz") else ()),
        ),
        effort="outside the program",
        kind="none",
        confidence="medium",
        scope="machine",
    )


POWER_CAP = Rule(
    id="machine.power_cap",
    cause="The GPU's power limit holds its clocks down.",
    find=_power_cap,
)


# GB/s a lane, by generation, after the line code's own bits.
_LANE_GB = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
_SLOW_COPY = 0.5  # of the card's link: a pinned copy reaches 80 to 90%
_LARGE_COPY = 1 << 20


def _slow_pcie_link(case: Case) -> Iterable[Finding]:
    """Where lanes are missing, or a lower generation shows in the copies.

    A generation alone says nothing: an idle GPU lowers it and raises it again under load.
    """
    gpu = _gpu_facts(case)
    width, most = gpu.get("pcie_width"), gpu.get("pcie_width_max")
    best = _link_rate(gpu.get("pcie_generation_max"), most)
    if not width or not most or not best:
        return
    copied = _copy_rate(case)
    narrow, slow = width < most, copied is not None and copied < _SLOW_COPY * best
    if not narrow and not (slow and (gpu["pcie_generation"] or 0) < gpu["pcie_generation_max"]):
        return
    share = _copies_share(case)
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


def _link_rate(generation: int | None, width: int | None) -> float | None:
    """GB/s of a link; None for one nobody knows."""
    lane = _LANE_GB.get(generation or 0)
    return lane * width if lane and width else None


def _copy_rate(case: Case) -> float | None:
    """GB/s of large pinned copies to the device in the window; None without any."""
    for one in (case.trace or {}).get("copies") or []:
        pinned = one["direction"] == "HtoD" and one["memory"] == "pinned"
        if pinned and one["count"] and one["bytes"] / one["count"] >= _LARGE_COPY:
            return float(one["bytes_per_s"]) / 1e9
    return None


def _gpu_throttled(case: Case) -> Iterable[Finding]:
    """At any reason but the power cap. How much it cost is not known: no clock to compare with."""
    gpu = _gpu_used(case)
    reasons = [one for one in gpu.get("throttled_by") or [] if one != ThrottleReason.POWER_CAP]
    if not reasons:
        return
    hot = any(ThrottleReason(reason).is_heat for reason in reasons)
    yield Finding(
        id=GPU_THROTTLED.id,
        title=f"The GPU was slowed down: {', '.join(reasons)}"[:60],
        why="The GPU lowered its clocks while steps ran: all numbers here are of a slower device.",
        advice=(
            "See to its cooling (fans, airflow, dust, a lower power limit) and measure again."
            if hot
            else "Ask who runs the machine about power supply and clock settings; measure again."
        ),
        share=0.0,
        evidence=(
            Evidence("reasons", ", ".join(reasons)),
            *_known_evidence(gpu, ("temperature_c", "hottest", "°C"), ("sm_mhz", "clock", "MHz")),
        ),
        effort="outside the program",
        kind="none",
        confidence="high",
        scope="machine",
    )


GPU_THROTTLED = Rule(
    id="machine.throttled",
    cause="The GPU held its clocks down during the run.",
    find=_gpu_throttled,
)


def _known_evidence(gpu: dict[str, object], *wanted: tuple[str, str, str]) -> list[Evidence]:
    found = ((gpu.get(key), what, unit) for key, what, unit in wanted)
    return [Evidence(what, float(str(value)), unit) for value, what, unit in found if value]
