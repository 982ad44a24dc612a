"""Pure readers of what Linux says about its processors, in /proc and /sys."""

import re
from collections.abc import Iterator


def cpu_model(cpuinfo: str) -> str | None:
    """The processor's name in /proc/cpuinfo; ARM machines often give none."""
    for block in _blocks(cpuinfo):
        for field in ("model name", "cpu model", "Model"):
            if block.get(field):
                return " ".join(block[field].split())
    return None


def physical_cores(cpuinfo: str) -> int | None:
    """Cores without their hyper-threads, over all sockets; None where /proc/cpuinfo has no ids."""
    cores = {
        (block["physical id"], block["core id"])
        for block in _blocks(cpuinfo)
        if "physical id" in block and "core id" in block
    }
    return len(cores) or None


def is_virtual(cpuinfo: str) -> bool | None:
    """Whether a hypervisor runs this machine; None where the processor does not say (not x86)."""
    for block in _blocks(cpuinfo):
        if "flags" in block:
            return "hypervisor" in block["flags"].split()
    return None


def cpu_list(text: str) -> list[int]:
    """The numbers in a kernel list such as `0-3,8`."""
    numbers: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        numbers.extend(range(int(first), int(last or first) + 1))
    return numbers


def load_average(text: str) -> tuple[float, float, float] | None:
    """Processes running or waiting for disk, over 1, 5 and 15 minutes, from /proc/loadavg."""
    numbers = re.findall(r"\d+\.\d+", text)
    return (float(numbers[0]), float(numbers[1]), float(numbers[2])) if len(numbers) > 2 else None


def _blocks(cpuinfo: str) -> Iterator[dict[str, str]]:
    for block in cpuinfo.strip().split("\n\n"):
        pairs = (line.partition(":") for line in block.splitlines())
        yield {name.strip(): value.strip() for name, _, value in pairs}
