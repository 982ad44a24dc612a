"""The description of a machine."""

import json
import subprocess
import sys

import msgspec

from stepscope.hardware.gpus import link_name, pci_locality
from stepscope.hardware.machine import (
    counters_need_root,
    cuda_build,
    describe_cpu,
    describe_machine,
    find_tool,
    package_version,
    torch_build,
)


def test_description_is_ready_for_json():
    document = json.loads(msgspec.json.encode(describe_machine()))
    assert document["cpu"]["usable_cores"] > 0
    assert document["memory"]["total_bytes"] > 0
    assert set(document["tools"]) == {"nsys", "ncu", "py-spy", "g++"}


def test_describing_does_not_import_torch():
    code = "import sys; from stepscope.hardware.machine import describe_machine; "
    code += "describe_machine(); "
    code += "print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "False\n"


def test_a_machine_that_says_nothing(tmp_path):
    cpu = describe_cpu(tmp_path)
    assert cpu.model is None
    assert cpu.governor is None
    assert cpu.numa_nodes is None
    assert cpu.usable_cores >= 1


def test_a_cgroup_limit_bounds_the_usable_cores(tmp_path):
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/cpu.max").write_text("50000 100000")
    assert describe_cpu(tmp_path).usable_cores == 0.5


def test_counters_need_root():
    assert counters_need_root("EnableMSI: 1\nRmProfilingAdminOnly: 1\n") is True
    assert counters_need_root("RmProfilingAdminOnly: 0\n") is False
    assert counters_need_root("") is None


def test_cuda_build_of_torch():
    assert cuda_build("debug = False\ncuda: Optional[str] = '13.0'\nhip = None\n") == "13.0"
    assert cuda_build("cuda = '12.4'\n") == "12.4"
    assert cuda_build("cuda: Optional[str] = None\nhip: Optional[str] = '6.0'\n") is None
    assert cuda_build("") is None


def test_torch_is_described_by_its_metadata():
    build = torch_build()
    assert build is not None
    assert build.version == package_version("torch")


def test_missing_software_is_none():
    assert package_version("no-such-package-anywhere") is None
    assert find_tool("no-such-tool-anywhere") is None


def test_pci_place(tmp_path):
    folder = tmp_path / "0000:c1:00.0"
    folder.mkdir()
    (folder / "numa_node").write_text("1\n")
    (folder / "local_cpulist").write_text("32-63\n")
    assert pci_locality("00000000:C1:00.0", tmp_path) == (1, "32-63")


def test_pci_place_not_known(tmp_path):
    folder = tmp_path / "0000:c1:00.0"
    folder.mkdir()
    (folder / "numa_node").write_text("-1\n")
    assert pci_locality("00000000:C1:00.0", tmp_path) == (None, None)
    assert pci_locality("00000000:C2:00.0", tmp_path) == (None, None)
    assert pci_locality(None, tmp_path) == (None, None)


def test_links_between_gpus():
    assert link_name(0, 50) == "NVLink"
    assert link_name(1, 10) == "one PCIe switch"
    assert link_name(None, 50) == "PCIe across NUMA nodes"
    assert link_name(None, None) is None
