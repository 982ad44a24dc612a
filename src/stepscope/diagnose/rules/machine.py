"""Machine rules: an idle GPU, cores, governor, NUMA, other processes, power, link, throttling."""

from collections.abc import Iterable
from typing import Any

from stepscope.diagnose.case import Case, rule
from stepscope.diagnose.rules import facts
from stepscope.fixes.inspect.devices import HIDDEN
from stepscope.hardware.processor import cpu_list
from stepscope.record.finding import (
    ChangeKind,
    Confidence,
    Effort,
    Evidence,
    Finding,
    FixRef,
    Place,
    Scope,
)
from stepscope.record.kinds import IdleCause, ThrottleReason


def _host_share(case: Case) -> float:
    """The share of the step the device idles because of the host; on the CPU, all of it."""
    if case.device != "cuda":
        return 1.0
    host = facts.idle_share(case, IdleCause.HOST, IdleCause.LOADER, IdleCause.SYNCHRONISATION)
    return host or 0.0


def _of_machine(**more: Any) -> Finding:
    """A finding about the machine: by default, no change to the program helps."""
    usual: dict[str, Any] = {"share": 0.0, "effort": Effort.OUTSIDE, "kind": ChangeKind.NONE}
    return Finding(scope=Scope.MACHINE, **(usual | more))


_COMPUTE = ("forward", "backward", "optimizer")
_LEAST_COMPUTE = 0.2


@rule("machine.idle_gpu", "The program computes on the CPU although there is a GPU.")
def idle_gpu(case: Case) -> Iterable[Finding]:
    """Computing on the CPU takes 20% of the step, and the machine has a GPU nobody hid."""
    gpu, config = facts.machine_part(case, "gpus"), case.config
    share = case.step_share(sum(case.phases.get(name, 0.0) for name in _COMPUTE))
    hidden = config.environment.get("CUDA_VISIBLE_DEVICES") in HIDDEN
    if case.device != "cpu" or not gpu or hidden or share < _LEAST_COMPUTE:
        return
    switch, where = config.device_switch, facts.sites(case, "forward")[:1]
    build = facts.machine_part(case, "torch")
    if build and not build.get("cuda"):
        advice = "This build of torch has no CUDA: install one that does."
    elif switch is None:
        advice = 'Move the model and each batch to the GPU: model.to("cuda"), batch.to("cuda").'
    elif switch.option is None:
        advice = 'Choose "cuda" where the device is named.'
    else:
        advice = f"Run it {'without' if switch.given else 'with'} {switch.option}."
    if switch is not None:
        where = (Place(switch.file, switch.line),)
    yield Finding(
        id=idle_gpu.id,
        title="Computes on the CPU beside an idle GPU",
        why=f"Forward, backward and optimizer take {share:.0%} of the step on the CPU; "
        f"{gpu.get('name') or 'the GPU'} does nothing. How much faster it is there cannot be "
        "predicted from a run on the CPU.",
        advice=advice,
        share=share,
        evidence=(
            Evidence("computing", share * 100, "% of the step"),
            Evidence("GPU", str(gpu.get("name") or "unknown")),
        ),
        where=where,
        effort=Effort.ONE_LINE,
        kind=ChangeKind.NUMERIC,
        scope=Scope.STEP,
    )


@rule("machine.data_parallel", "nn.DataParallel with a single GPU.")
def data_parallel(case: Case) -> Iterable[Finding]:
    """The root model is an nn.DataParallel, and the program sees one GPU."""
    gpus = case.config.machine.get("gpus") or ()
    visible = case.config.environment.get("CUDA_VISIBLE_DEVICES")
    count = len(gpus) if visible is None else len(visible.split(","))
    wrapped = [one for one in case.config.models if one.name == "DataParallel"]
    if case.device != "cuda" or not wrapped or count != 1:
        return
    yield Finding(
        id=data_parallel.id,
        title="nn.DataParallel wraps the model for a single GPU",
        why="It scatters every batch and gathers the outputs for one device, and keeps the model "
        "out of sight of torch.compile.",
        advice="Use the model itself on one GPU, and DistributedDataParallel on several.",
        share=0.0,
        evidence=(Evidence("GPUs", count),),
        where=facts.sites(case, "forward")[:1],
        effort=Effort.ONE_LINE,
        kind=ChangeKind.EXACT,
    )


_CORES_BUSY = 0.85
_LEAST_DATA_WAIT = 0.1


@rule("machine.few_cores", "The usable CPU cores cannot feed the GPU.")
def few_cores(case: Case) -> Iterable[Finding]:
    """All usable cores are busy, and the GPU still waits for data."""
    cpu, percent = facts.machine_part(case, "cpu"), facts.cpu_percent(case)
    usable = float(cpu.get("usable_cores") or 0)
    if case.device != "cuda" or not usable or percent is None:
        return
    share = case.phases.get("data_wait", 0.0) / case.step_ms if case.step_ms else 0.0
    waits = min(share, _host_share(case)) >= _LEAST_DATA_WAIT
    if not waits or percent < _CORES_BUSY * 100 * usable:
        return
    logical = float(cpu.get("logical_cores") or usable)
    limited = logical > usable
    first = "More workers will not help."
    if limited:
        first = f"The machine has {logical:g} cores: request more (container or job limits)."
    yield _of_machine(
        id=few_cores.id,
        title=f"All {usable:g} usable cores are busy loading data",
        why=f"The program and its workers use {percent / 100:.1f} of {usable:g} cores, and the "
        f"GPU still waits for data {share:.0%} of the step.",
        advice=f"{first} Make samples cheaper: decode and resize once, or augment on the GPU.",
        share=share,
        evidence=(
            Evidence("cores in use", percent / 100),
            Evidence("usable cores", usable),
            Evidence("cores of the machine", logical),
            Evidence("data wait", share * 100, "% of the step"),
        ),
        effort=Effort.OUTSIDE if limited else Effort.FEW_LINES,
        confidence=Confidence.MEDIUM,
    )


_SAVING = ("powersave", "conservative")
_LEAST_HOST_SHARE = 0.1


@rule("machine.governor", "The CPU saves power while the step waits for it.")
def cpu_governor(case: Case) -> Iterable[Finding]:
    """A power-saving governor is set, and the host determines 10% of the step."""
    governor = facts.machine_part(case, "cpu").get("governor")
    share = _host_share(case)
    if governor not in _SAVING or share < _LEAST_HOST_SHARE:
        return
    yield _of_machine(
        id=cpu_governor.id,
        title=f"The CPU governor is {governor}",
        why=f"The host determines {share:.0%} of the step, and this governor raises clocks late "
        "or not at all (some drivers' powersave does, so measure).",
        advice="As root: cpupower frequency-set -g performance; then measure again.",
        evidence=(
            Evidence("governor", str(governor)),
            Evidence("host-bound", share * 100, "% of the step"),
        ),
        confidence=Confidence.LOW,
    )


_LEAST_NUMA_SHARE = 0.05  # of the step that host or copies determine


@rule("machine.numa_remote", "The program may run on cores far from its GPU.")
def numa_remote(case: Case) -> Iterable[Finding]:
    """The machine has several NUMA nodes, and the program may use cores off the GPU's node."""
    gpu, cpu = facts.machine_part(case, "gpus"), facts.machine_part(case, "cpu")
    nodes, node = int(cpu.get("numa_nodes") or 1), gpu.get("numa_node")
    near = len(cpu_list(str(gpu.get("cpu_affinity") or "")))
    usable = float(cpu.get("usable_cores") or 0)
    if case.device != "cuda" or nodes < 2 or node is None or not near or usable <= near:
        return
    share = min(1.0, (facts.exposed_copy_share(case) or 0.0) + _host_share(case))
    if share < _LEAST_NUMA_SHARE:
        return
    yield _of_machine(
        id=numa_remote.id,
        title=f"The program is not bound to the GPU's NUMA node {node}",
        why=f"It may use {usable:.0f} cores on {nodes} nodes, and only {near} are local to the "
        "GPU: launches and copies from the others cross sockets.",
        advice=f"Start it with numactl --cpunodebind={node} --membind={node}, or try the fix.",
        evidence=(
            Evidence("NUMA nodes", nodes),
            Evidence("cores local to the GPU", str(gpu["cpu_affinity"])),
            Evidence("usable cores", usable),
            Evidence("host- or copy-bound", share * 100, "% of the step"),
        ),
        fix=FixRef("affinity"),
        effort=Effort.ONE_LINE,
        kind=ChangeKind.EXACT,
        confidence=Confidence.LOW,
    )


@rule("machine.other_process", "Another process uses the same GPU.")
def other_gpu_process(case: Case) -> Iterable[Finding]:
    """Another process used the GPU while steps ran."""
    gpu = case.gpu
    others = int(gpu.other_processes or 0) if gpu else 0
    if others < 1:
        return
    many = f"{others} other processes use" if others > 1 else "Another process uses"
    yield _of_machine(
        id=other_gpu_process.id,
        title=f"{many} this GPU",
        why="They share its time and memory with this program, so steps take longer; by how much "
        "cannot be measured from here.",
        advice="Find them with nvidia-smi; wait, or pick a free GPU with CUDA_VISIBLE_DEVICES.",
        evidence=(Evidence("other processes", others),),
    )


_NEAR_POWER_LIMIT = 0.85  # of the limit: a cap hit only briefly matters little


@rule("machine.power_cap", "The GPU's power limit lowers its clocks.")
def power_cap(case: Case) -> Iterable[Finding]:
    """The power cap was hit, and mean power is within 15% of the limit."""
    gpu, limit = case.gpu, facts.machine_part(case, "gpus").get("power_limit_w")
    if gpu is None or ThrottleReason.POWER_CAP not in gpu.throttled_by:
        return
    power = gpu.power_w
    if not power or not limit or power < _NEAR_POWER_LIMIT * limit:
        return
    yield _of_machine(
        id=power_cap.id,
        title=f"GPU is power-limited: {power:.0f} of {limit:.0f} W",
        why=f"It drew {power:.0f} W on average and lowered its clocks to stay within the limit.",
        advice="Raise the limit if the card allows (nvidia-smi -pl, as root); bf16 and fused "
        "kernels need less power for the same step.",
        evidence=(
            Evidence("mean power", power, "W"),
            Evidence("limit", limit, "W"),
            *([Evidence("clock", gpu.sm_mhz, "MHz")] if gpu.sm_mhz else ()),
        ),
        confidence=Confidence.MEDIUM,
    )


# GB/s per lane, by generation, after encoding.
_LANE_GB = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
_SLOW_COPY = 0.5  # of the card's link: a pinned copy reaches 80 to 90%
_LARGE_COPY = 1 << 20


@rule("machine.slow_link", "The GPU's PCIe link is narrower or slower than the card allows.")
def slow_pcie_link(case: Case) -> Iterable[Finding]:
    """Lanes are missing, or a lower generation shows in the copies.

    A generation alone says nothing: an idle GPU lowers it and raises it again under load.
    """
    gpu = facts.machine_part(case, "gpus")
    width, most = gpu.get("pcie_width"), gpu.get("pcie_width_max")
    now, newest = gpu.get("pcie_generation"), gpu.get("pcie_generation_max")
    best = _LANE_GB.get(newest or 0, 0.0) * (most or 0)
    if not width or not most or not best:
        return
    copied = _copy_rate(case)
    narrow, slow = width < most, copied is not None and copied < _SLOW_COPY * best
    if not narrow and not (slow and (now or 0) < (newest or 0)):
        return
    share = facts.exposed_copy_share(case) or 0.0
    title = f"The GPU uses {width} of {most} PCIe lanes"
    if not narrow:
        title = f"The GPU's link runs at PCIe {now} instead of {newest}"
    faster = width / most if narrow else (copied or best) / best
    yield _of_machine(
        id=slow_pcie_link.id,
        title=title,
        why=f"Copies could be {1 / faster:.1f}× faster; the GPU does nothing but copy {share:.0%} "
        "of the step.",
        advice="Use a slot with all lanes, reseat the card, and check the slot's firmware "
        "setting; copying less, or during compute, helps on any link.",
        share=share,
        evidence=(
            Evidence("link", f"PCIe {now} ×{width}"),
            Evidence("card's maximum", f"PCIe {newest} ×{most}"),
            *([Evidence("pinned copies", copied, "GB/s")] if copied is not None else ()),
        ),
        predicted=case.reach(
            case.step_ms * (1 - share * (1 - faster)),
            f"copies not overlapped, {share:.0%} of the step, take {faster:.0%} as long",
        ),
        confidence=Confidence.MEDIUM,
    )


def _copy_rate(case: Case) -> float | None:
    """GB/s of large pinned copies to the device in the window; None if there are none."""
    for one in case.trace.copies if case.trace else ():
        pinned = one.direction == "HtoD" and one.memory == "pinned"
        if pinned and one.count and one.bytes_per_s and (one.bytes or 0) / one.count >= _LARGE_COPY:
            return one.bytes_per_s / 1e9
    return None


@rule("machine.throttled", "The GPU lowered its clocks during the run.")
def gpu_throttled(case: Case) -> Iterable[Finding]:
    """Any reason but the power cap. What it cost is unknown: there is no clock to compare with."""
    gpu = case.gpu
    throttled = gpu.throttled_by if gpu else []
    reasons = [one for one in throttled if one is not ThrottleReason.POWER_CAP]
    if gpu is None or not reasons:
        return
    hot = any(one.is_heat for one in reasons)
    yield _of_machine(
        id=gpu_throttled.id,
        title=f"GPU throttled: {', '.join(reasons)}"[:60],
        why="The GPU lowered its clocks while steps ran: all times here are of a slower device.",
        advice=(
            "Improve its cooling (fans, airflow, dust, a lower power limit) and measure again."
            if hot
            else "Have the machine's power supply and clock settings checked; measure again."
        ),
        evidence=(
            Evidence("reasons", ", ".join(reasons)),
            *([Evidence("hottest", gpu.temperature_c, "°C")] if gpu.temperature_c else ()),
            *([Evidence("clock", gpu.sm_mhz, "MHz")] if gpu.sm_mhz else ()),
        ),
    )
