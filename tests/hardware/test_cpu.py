"""Reading /proc and /sys about processors."""

from stepscope.hardware.processor import (
    cpu_list,
    cpu_model,
    is_virtual,
    load_average,
    physical_cores,
)

TWO_CORES_FOUR_THREADS = "\n\n".join(
    f"processor\t: {i}\nmodel name\t: Some  CPU @ 2.00GHz\nphysical id\t: {i // 4}\n"
    f"core id\t\t: {i % 2}\nflags\t\t: fpu sse2 hypervisor avx2"
    for i in range(4)
)
ARM = "processor\t: 0\nBogoMIPS\t: 50.00\nFeatures\t: fp asimd\nCPU implementer\t: 0x41\n"


def test_model_is_read_with_single_spaces():
    assert cpu_model(TWO_CORES_FOUR_THREADS) == "Some CPU @ 2.00GHz"


def test_threads_of_a_core_count_once():
    assert physical_cores(TWO_CORES_FOUR_THREADS) == 2


def test_cores_of_two_sockets_add_up():
    second = TWO_CORES_FOUR_THREADS.replace("physical id\t: 0", "physical id\t: 1")
    assert physical_cores(TWO_CORES_FOUR_THREADS + "\n\n" + second) == 4


def test_a_hypervisor_flag_means_virtual():
    assert is_virtual(TWO_CORES_FOUR_THREADS) is True
    assert is_virtual(TWO_CORES_FOUR_THREADS.replace("hypervisor ", "")) is False


def test_arm_and_empty_text_give_none():
    for text in (ARM, ""):
        assert cpu_model(text) is None
        assert physical_cores(text) is None
        assert is_virtual(text) is None


def test_kernel_lists():
    assert cpu_list("0-3,8\n") == [0, 1, 2, 3, 8]
    assert cpu_list("0\n") == [0]
    assert cpu_list("\n") == []


def test_load_average():
    assert load_average("0.52 1.25 12.00 2/86 4245\n") == (0.52, 1.25, 12.0)
    assert load_average("") is None
