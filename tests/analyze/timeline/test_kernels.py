"""Tables of the device's time: they add up, and equal a plain count."""

import dataclasses
import json
from collections import defaultdict

import numpy as np
import pytest
from msgspec import to_builtins
from recordings import recorded

from stepscope.analyze.timeline.attribution import attribute
from stepscope.analyze.timeline.kernels import (
    Kernels,
    heaviest_operators,
    kernel_report,
    kernel_table,
)
from stepscope.record.timeline import Geometry, Timeline


@pytest.fixture(scope="module")
def resnet() -> Timeline:
    return recorded("resnet18_b32_h200")


@pytest.fixture(scope="module")
def report(resnet: Timeline) -> Kernels:
    return kernel_report(resnet, attribute(resnet))


def test_every_table_adds_up_to_all_device_time(resnet: Timeline, report: Kernels) -> None:
    whole = int(resnet.device.duration.sum())
    assert report.total_ns == whole
    by = report.by
    tables = [report.kernels, by.category, by.operator, by.module, by.line, by.phase]
    for table in tables:
        assert sum(row.total_ns for row in table) == whole
        assert sum(row.count for row in table) == len(resnet.device)
        assert sum(row.share for row in table) == pytest.approx(1)
        assert [r.total_ns for r in table] == sorted((r.total_ns for r in table), reverse=True)


def test_rows_equal_a_plain_count(resnet: Timeline, report: Kernels) -> None:
    runs: dict[str, list[int]] = defaultdict(list)
    for name, duration in zip(resnet.device.name, resnet.device.duration, strict=True):
        runs[resnet.names[name]].append(int(duration))
    rows = defaultdict(list)
    for row in report.kernels:
        rows[row.name].append(row)
    assert rows.keys() == runs.keys()
    for name, alike in rows.items():
        assert sum(r.count for r in alike) == len(runs[name])
        assert min(r.min_ns for r in alike) == min(runs[name])
        assert max(r.max_ns for r in alike) == max(runs[name])
    row = report.kernels[0]
    bins: dict[int, int] = defaultdict(int)
    for duration in runs[row.name]:
        bins[duration.bit_length() - 1] += 1
    assert row.histogram == bins
    assert row.mean_ns == pytest.approx(sum(runs[row.name]) / len(runs[row.name]))


def test_tensor_core_share_is_of_the_time_of_matrix_products(report: Kernels) -> None:
    matrix = [k for k in report.kernels if k.category in ("matmul", "convolution", "attention")]
    on = sum(k.total_ns for k in matrix if k.tensor_core)
    assert report.tensor_cores.matrix_share == pytest.approx(on / sum(k.total_ns for k in matrix))
    assert report.tensor_cores.share == pytest.approx(on / report.total_ns)
    assert 0.3 < report.tensor_cores.matrix_share < 0.45
    assert report.tensor_cores.unknown_share == 0


def test_occupancy_is_weighted_by_time(resnet: Timeline, report: Kernels) -> None:
    device = resnet.device
    occupancy = np.array([g.occupancy for g in resnet.geometries])
    row = next(k for k in report.kernels if k.occupancy)
    of_row = device.name == resnet.names.index(row.name)
    weights = device.duration[of_row]
    expected = (occupancy[device.geometry[of_row]] * weights).sum() / weights.sum()
    assert row.occupancy == pytest.approx(expected)


def test_an_occupancy_kineto_could_not_work_out_is_not_known(resnet: Timeline) -> None:
    attribution = attribute(resnet)
    failed = [Geometry(occupancy=0.0, warps_per_sm=12.0)] * len(resnet.geometries)
    tiny = [Geometry(occupancy=0.0, warps_per_sm=0.1)] * len(resnet.geometries)
    for geometries, expected in ((failed, None), (tiny, 0.0)):
        changed = dataclasses.replace(resnet, geometries=geometries)
        assert kernel_report(changed, attribution).occupancy == expected


def test_heaviest_operators_hold_all_they_launch(resnet: Timeline, report: Kernels) -> None:
    attribution = attribute(resnet)
    heavy = heaviest_operators(resnet, attribution)
    assert len(heavy) == 10
    assert [h.name for h in heavy[:2]] == ["ConvolutionBackward0", "aten::conv2d"]
    inner = {g.name: g.total_ns for g in report.by.operator}
    assert heavy[1].device_ns == inner["aten::cudnn_convolution"]
    assert heavy[1].calls == 160
    assert 0 < heavy[1].host_self_ns < heavy[1].host_ns
    every = heaviest_operators(resnet, attribution, limit=1000)
    assert sum(h.device_ns for h in every) == report.total_ns


def test_self_time_of_the_host_is_without_called_operators(resnet: Timeline) -> None:
    host = resnet.host
    conv = np.flatnonzero(host.name == resnet.names.index("aten::conv2d"))
    inside = np.isin(host.parent, conv) & (host.kind == 0)
    expected = int(host.duration[conv].sum() - host.duration[inside].sum())
    row = next(h for h in heaviest_operators(resnet, attribute(resnet)) if h.name == "aten::conv2d")
    assert row.host_self_ns == expected


def test_without_device_work_every_table_is_empty() -> None:
    timeline = recorded("cpu_only_rank34.pt.trace")
    attribution = attribute(timeline)
    report = kernel_report(timeline, attribution)
    assert (report.count, report.total_ns, report.kernels, report.by.phase) == (0, 0, [], [])
    assert report.occupancy is None
    assert report.tensor_cores.share is None
    assert heaviest_operators(timeline, attribution) == []


def test_the_same_name_under_other_operators_keeps_a_row_for_each_category() -> None:
    timeline = recorded("v100_ns_timestamps.pt.trace")
    rows = [k for k in kernel_table(timeline, attribute(timeline)) if k.name.startswith("volta_s")]
    assert {k.category for k in rows} >= {"convolution", "matmul"}
    assert not any(k.tensor_core for k in rows)


def test_the_report_is_json(report: Kernels) -> None:
    assert json.loads(json.dumps(to_builtins(report)))["count"] == report.count
