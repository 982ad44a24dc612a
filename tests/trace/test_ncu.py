"""Nsight Compute's counters: the real sample, other locales and units, and joining to kernels."""

import gzip
import math
import random
import stat
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from plain import TRACES

from stepscope.record.errors import StepscopeError
from stepscope.record.timeline import (
    DeviceEvents,
    DeviceKind,
    Geometry,
    HostEvents,
    MemoryEvents,
    Quality,
    Stream,
    SyncEvents,
    Timeline,
    make_events,
)
from stepscope.trace.kineto.read import read_kineto
from stepscope.trace.nsight.counter_join import join_counters, kernel_base_name, names_agree
from stepscope.trace.nsight.counters import (
    METRICS,
    KernelCounters,
    has_decimal_comma,
    parse_number,
    read_ncu,
    unit_scale,
)
from stepscope.trace.nsight.sqlite_export import UnreadableReport

FLOP = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum"
OPS = "sm__ops_path_tensor_{}.sum"


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ncu") / "raw.csv"
    path.write_bytes(gzip.decompress((TRACES / "h200_conv_gemm_softmax_raw.csv.gz").read_bytes()))
    return path


def counted(kernel: str = "k", size: int = 1, **metrics: float) -> KernelCounters:
    return KernelCounters(kernel, 0, "7", (size, 1, 1), (32, 1, 1), 1.0, metrics)


def recorded(kernels: Sequence[tuple[str, int, int]]) -> Timeline:
    """A timeline of kernels, each with a name, a grid and a duration."""
    names = sorted({name for name, _, _ in kernels})
    sizes = sorted({size for _, size, _ in kernels})
    return Timeline(
        source="",
        tool="kineto",
        origin_ns=0,
        names=names,
        threads=[],
        streams=[Stream(0, "7")],
        shapes=[],
        geometries=[Geometry((size, 1, 1), (32, 1, 1)) for size in sizes],
        collectives=[],
        devices=[],
        host=make_events(HostEvents),
        device=make_events(
            DeviceEvents,
            kind=[DeviceKind.KERNEL] * len(kernels),
            name=[names.index(name) for name, _, _ in kernels],
            start=[1000 * n for n in range(len(kernels))],
            duration=[duration for _, _, duration in kernels],
            stream=[0] * len(kernels),
            geometry=[sizes.index(size) for _, size, _ in kernels],
        ),
        memory=make_events(MemoryEvents),
        syncs=make_events(SyncEvents),
        span=(0, 1000 * len(kernels)),
        rank=None,
        world_size=None,
        backend=None,
        quality=Quality(),
    )


# Reading


def test_sample_gives_each_kernel_its_counters(sample: Path) -> None:
    kernels = read_ncu(sample)
    assert [k.id for k in kernels] == list(range(19))
    gemm = kernels[3]
    assert gemm.kernel == "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT"
    assert (gemm.stream, gemm.grid, gemm.block) == ("7", (2, 66, 1), (384, 1, 1))
    assert gemm.duration_ns == 175_552
    assert gemm.dram_bytes == 175_619_072
    assert kernels[0].metrics["dram__bytes.avg"] == 174_282.67
    assert kernels[0].metrics["launch__shared_mem_per_block"] == 1024


def test_sample_has_no_operations_as_none_were_counted(sample: Path) -> None:
    assert {k.flops for k in read_ncu(sample)} == {None}


def german(text: str) -> str:
    """The sample as a locale with decimal commas prints it, with semicolons between cells."""
    swap = str.maketrans(",.", ".,")
    lines = []
    for line in text.splitlines():
        cells = line[1:-1].split('","')
        swapped = [cell.translate(swap) if cell[:1].isdigit() else cell for cell in cells]
        lines.append('"' + '";"'.join(swapped) + '"' if line.startswith('"') else line)
    return "\n".join(lines)


def test_decimal_commas_and_semicolons_give_the_same_counters(sample: Path, tmp_path: Path) -> None:
    path = tmp_path / "german.csv"
    path.write_text(german(sample.read_text()))
    assert '"4,05"' in path.read_text()
    assert '"8.365.568"' in path.read_text()
    assert read_ncu(path) == read_ncu(sample)


def test_windows_redirection_and_other_lines_do_not_hide_the_table(
    sample: Path, tmp_path: Path
) -> None:
    lines = sample.read_text().splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith('"ID"'))
    noisy = [*lines[:at], "epoch 1, loss 0.3", *lines[at : at + 5], "==PROF== 50%", "step 2, 0.1"]
    path = tmp_path / "wide.csv"
    path.write_text("\r\n".join([*noisy, *lines[at + 5 :], lines[-1][:90]]), encoding="utf-16")
    assert read_ncu(path) == read_ncu(sample)


def test_scaled_units_become_base_units(tmp_path: Path) -> None:
    path = tmp_path / "units.csv"
    path.write_text(
        "ID,Kernel Name,Stream,gpu__time_duration.sum,dram__bytes_read.sum,dram__bytes_write.sum,"
        "dram__bytes.sum.per_second,sm__cycles_elapsed.avg.per_second,launch__grid_dim_x,"
        "launch__grid_dim_y,launch__grid_dim_z,a__text,a__gap\n"
        ",,,usecond,Gbyte,Mbyte,Tbyte/second,cycle/nsecond,,,,,\n"
        "0,k,7,1.25,2.5,3,1.5,1.98,4,2,1,CachePreferNone,\n"
    )
    (kernel,) = read_ncu(path)
    assert kernel.duration_ns == 1250
    assert kernel.dram_bytes == 2.503e9
    assert kernel.metrics["dram__bytes.sum.per_second"] == 1.5e12
    assert kernel.metrics["sm__cycles_elapsed.avg.per_second"] == 1.98e9
    assert (kernel.grid, kernel.block) == ((4, 2, 1), None)
    assert not {"a__text", "a__gap"} & kernel.metrics.keys()


@pytest.mark.parametrize(
    ("unit", "factor"),
    [
        ("byte", 1), ("Kbyte", 1e3), ("Tbyte", 1e12), ("Mbyte/second", 1e6), ("byte/block", 1),
        ("Kbyte/block", 1e3), ("ns", 1), ("us", 1e3), ("msecond", 1e6), ("s", 1e9), ("Ghz", 1e9),
        ("inst", 1), ("Minst", 1e6), ("inst/cycle", 1), ("%", 1), ("", 1), ("register/thread", 1),
        ("cycle/usecond", 1e6), ("Gbyte/s", 1e9), ("pass", 1), ("cluster", 1),
    ],
)  # fmt: skip
def test_units_scale(unit: str, factor: float) -> None:
    assert unit_scale(unit) == factor


@pytest.mark.parametrize(
    ("cell", "comma", "value"),
    [
        ("1,234", False, 1234), ("1,234", True, 1.234), ("1.234,5", True, 1234.5),
        ("1,234.5", False, 1234.5), ("12 345,5", True, 12345.5), ("1’234.5", False, 1234.5),
        ("-3.5e-7", False, -3.5e-7), ("62,50", False, None), ("1,23,456", False, None),
        ("n/a", False, None), ("", False, None), ("nan", False, None), ("1e999", False, None),
        ("9.0.1", False, None),
    ],
)  # fmt: skip
def test_numbers_follow_the_mark_of_their_file(cell: str, comma: bool, value: float | None) -> None:
    assert parse_number(cell, comma) == value


def test_only_telling_numbers_decide_the_decimal_mark() -> None:
    assert has_decimal_comma(["1,234", "62,50", "no"], default=False)
    assert has_decimal_comma(["1.234.567"], default=False)
    assert has_decimal_comma(["0,125"], default=False)
    assert not has_decimal_comma(["1.234", "62.50"], default=True)
    assert has_decimal_comma(["1,234", "7"], default=True)


@pytest.mark.parametrize("content", ["", "epoch 1\n", "==PROF== nothing\n", "ID\n", "\0\0\0"])
def test_files_without_the_table_are_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "no.csv"
    path.write_text(content)
    with pytest.raises(UnreadableReport, match=r"no\.csv.*--csv --page raw"):
        read_ncu(path)


def test_the_page_of_details_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "details.csv"
    path.write_text('"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"\n')
    with pytest.raises(UnreadableReport, match="details page"):
        read_ncu(path)


def test_mutated_files_end_in_a_result_or_one_error(sample: Path, tmp_path: Path) -> None:
    whole = sample.read_bytes()
    source = random.Random(5)
    path = tmp_path / "mutated.csv"
    for _ in range(60):
        damaged = bytearray(whole[: source.randrange(1, len(whole))])
        for _ in range(source.choice((0, 5, 200))):
            damaged[source.randrange(len(damaged))] = source.choice(b'",;.\n\0\xff9=')
        path.write_bytes(damaged)
        try:
            kernels = read_ncu(path)
        except UnreadableReport:
            continue
        assert all(math.isfinite(v) for k in kernels for v in k.metrics.values())


def test_reports_are_read_through_ncu_or_explained(
    sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = tmp_path / "a b.ncu-rep"
    report.write_bytes(b"report")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StepscopeError, match=r"ncu is not installed: .*--csv --page raw"):
        read_ncu(report)
    script = tmp_path / "ncu"
    script.write_text(f'#!/bin/sh\n[ "$2" = "{report}" ] && /bin/cat "{sample}"\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    assert read_ncu(report) == read_ncu(sample)
    with pytest.raises(StepscopeError, match="No such file"):
        read_ncu(tmp_path / "absent.ncu-rep")


# Operations


def test_operations_count_a_fused_multiply_add_twice() -> None:
    metrics = {
        FLOP.format(f"f{name}"): n for name, n in (("add", 1.0), ("mul", 10.0), ("fma", 100.0))
    }
    metrics[FLOP.format("hfma")] = 1000.0  # works on two values at once
    metrics[FLOP.format("dadd")] = 10_000.0
    metrics[OPS.format("src_bf16_dst_fp32")] = 2.0**20
    assert counted(**metrics).flops == 211 + 4000 + 10_000 + 2**20
    del metrics[FLOP.format("fmul")]
    assert counted(**metrics).flops is None
    assert counted(**metrics).tensor_flops == 2**20


@pytest.mark.parametrize(
    ("metrics", "flops"),
    [
        ({"src_fp16": 8, "src_fp16_dst_fp16": 3, "src_fp16_dst_fp32": 5}, 8),
        ({"src_fp16_dst_fp16": 3, "src_fp16_dst_fp32": 5, "src_int8": 99}, 8),
        ({"src_fp16_dst_fp32": 5, "src_fp16_dst_fp32_sparsity_on": 1}, 5),
        ({"src_fp8_sparsity_on": 1, "src_fp8_sparsity_off": 4}, 5),
        ({"op_hmma_src_bf16_dst_fp32_sparsity_off": 2, "src_bf16_dst_fp32": 2}, 2),
        ({"src_fp4_dst_fp32": 2, "src_fp4_fp6_fp8_dst_fp32": 7}, 7),
        ({"src_tf32_dst_fp32": 6, "src_bf16_dst_fp32": 2}, 8),
        ({"src_int8": 9}, 0),
        ({}, None),
    ],
)
def test_overlapping_tensor_counters_are_counted_once(
    metrics: dict[str, float], flops: float | None
) -> None:
    assert counted(**{OPS.format(k): v for k, v in metrics.items()}).tensor_flops == flops


def test_an_idle_tensor_pipe_means_no_tensor_operations() -> None:
    assert counted(**{"sm__inst_executed_pipe_tensor.sum": 0.0}).tensor_flops == 0
    assert counted(**{"sm__inst_executed_pipe_tensor.sum": 5.0}).tensor_flops is None


def test_the_metrics_to_record_give_everything_that_is_derived() -> None:
    kernel = counted(**dict.fromkeys(METRICS, 1.0))
    derived = ("dram_bytes", "flops")
    assert None not in [getattr(kernel, name) for name in derived]
    assert len(set(METRICS)) == len(METRICS)


# Joining


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("gemm_NNT", "gemm_NNT"),
        ("void at::native::(anonymous namespace)::soft<float, 4>(float*, long)", "soft"),
        ("void at::<unnamed>::soft<T::[lambda(int) (instance 1)]>(T1 *)", "soft"),
        ("soft<at::f(int)::{lambda()#1}::operator()() const::{lambda(float)#1}>", "soft"),
        ("std::enable_if<!(false), void>::type internal::gemvx::kernel<int, float>(P)", "kernel"),
        ("", ""),
    ],
)
def test_base_names(name: str, base: str) -> None:
    assert kernel_base_name(name) == base


def test_names_agree_when_no_word_is_new() -> None:
    kineto = (
        "void at::native::vec<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >(int)"
    )
    assert names_agree(
        "void at::vec<4, at::CUDAFunctor_add<float>, std::array<char *, 3>>(int, T2)", kineto
    )
    assert not names_agree(
        "void at::vec<4, at::FillFunctor<float>, std::array<char *, 1>>(int)", kineto
    )
    assert names_agree("vec", kineto)
    assert names_agree("void at::vec<4, float>(int)", "vec")


def test_equal_numbers_of_launches_are_joined_in_order() -> None:
    one, two = counted("k<int>(T1 *)"), counted("k<float>(T1 *)")
    timeline = recorded([("k<int>(int*)", 1, 5), ("other", 1, 5), ("k<float>(float*)", 1, 50)])
    joined = join_counters([one, two], timeline)
    assert joined.counters == {0: one, 2: two}
    assert (joined.by_name, joined.by_base, joined.repeated) == (0, 2, 0)
    assert (joined.kernels_without, joined.counters_without) == (1, 0)


def test_order_is_that_of_launches() -> None:
    timeline = recorded([("k", 1, 5), ("k", 1, 5)])
    calls = make_events(HostEvents, kind=[3, 3], name=[0, 0], start=[10, 20], duration=[1, 1])
    timeline.device.launch[:] = [1, 0]  # the first to run was launched last
    first, second = counted("k", x=1.0), counted("k", x=2.0)
    joined = join_counters([first, second], replace(timeline, host=calls))
    assert joined.counters == {0: second, 1: first}


def test_repeated_steps_share_the_counters_of_one() -> None:
    a, b = counted("k", x=1.0), counted("k", x=2.0)
    timeline = recorded([("k", 1, 10), ("k", 1, 90)] * 3)
    joined = join_counters([a, b], timeline)
    assert [joined.counters[n] for n in range(6)] == [a, b] * 3
    assert joined.repeated == 4
    assert join_counters([a, b] * 3, recorded([("k", 1, 10), ("k", 1, 90)])).counters == {
        0: a,
        1: b,
    }


def test_launches_that_are_no_repetitions_are_ambiguous() -> None:
    unlike = join_counters([counted("k")], recorded([("k", 1, 10), ("k", 1, 90), ("k", 1, 500)]))
    assert (unlike.counters, unlike.ambiguous, unlike.counters_without) == ({}, 3, 1)
    uneven = join_counters([counted("k")] * 2, recorded([("k", 1, 10)] * 3))
    assert (uneven.counters, uneven.ambiguous, uneven.counters_without) == ({}, 3, 2)


def test_another_template_or_size_is_not_joined() -> None:
    template = join_counters([counted("k<int>()")], recorded([("k<float>()", 1, 5)]))
    assert (template.counters, template.contradicted) == ({}, 1)
    size = join_counters([counted("k", size=8)], recorded([("k", 1, 5)]))
    assert (size.counters, size.other_size, size.counters_without) == ({}, 1, 1)
    absent = join_counters([counted("z")], recorded([("k", 1, 5)]))
    assert (absent.other_size, absent.counters_without, absent.kernels_without) == (0, 1, 1)


def test_nothing_joins_to_nothing() -> None:
    assert join_counters([], recorded([])).counters == {}
    assert join_counters([counted()], recorded([])).counters_without == 1


def test_sample_joins_the_trace_of_the_same_machine(sample: Path) -> None:
    timeline = read_kineto(TRACES / "gpt_b4x1024_bf16_h200.json.gz")
    joined = join_counters(read_ncu(sample), timeline)
    gemm = "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT"
    assert {timeline.name_of(timeline.device.name[n]) for n in joined.counters} == {gemm}
    assert {k.kernel for k in joined.counters.values()} == {gemm}
    assert len(joined.counters) == joined.by_name > 50
    assert joined.counters_without == 17
