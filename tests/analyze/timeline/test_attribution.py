"""Each device event's operator, phase, module and line, on built and on real timelines."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recordings import recorded

from stepscope.analyze.timeline.attribution import Attribution, attribute, nearest
from stepscope.record.row_log import STEP_PHASES
from stepscope.record.timeline import (
    NOTHING,
    DeviceEvents,
    DeviceKind,
    HostEvents,
    HostKind,
    MemoryEvents,
    Quality,
    Stream,
    SyncEvents,
    Thread,
    Timeline,
    make_events,
)

OPERATOR, ANNOTATION, PYTHON, RUNTIME = (
    HostKind.OPERATOR,
    HostKind.ANNOTATION,
    HostKind.PYTHON,
    HostKind.RUNTIME,
)
NODE = "autograd::engine::evaluate_function: "


class Recording:
    """Host events given as nested calls; each runtime call launches one kernel."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.host: list[tuple[int, int, int, int, int]] = []  # kind, name, thread, sequence, parent
        self.launched: list[tuple[int, int, int]] = []  # kind, name, launch
        self.threads = [Thread("1", "1", "python"), Thread("1", "2", "pt_autograd_0")]

    def _name(self, name: str) -> int:
        if name not in self.names:
            self.names.append(name)
        return self.names.index(name)

    def call(self, *nested: tuple, thread: int = 0, kernel: str = "k") -> int:
        """A chain of (kind, name[, sequence]) that ends in a launch; gives the kernel's index."""
        parent = NOTHING
        for kind, name, *sequence in [*nested, (RUNTIME, "cudaLaunchKernel")]:
            number = sequence[0] if sequence else NOTHING
            self.host.append((kind, self._name(name), thread, number, parent))
            parent = len(self.host) - 1
        kind = DeviceKind.COPY if kernel.startswith("Memcpy") else DeviceKind.KERNEL
        self.launched.append((kind, self._name(kernel), parent))
        return len(self.launched) - 1

    def timeline(self) -> Timeline:
        kind, name, thread, sequence, parent = zip(*self.host, strict=True)
        device_kind, kernel, launch = zip(*self.launched, strict=True)
        size, count = len(self.host), len(self.launched)
        return Timeline(
            source="built", tool="kineto", origin_ns=0, names=self.names, threads=self.threads,
            streams=[Stream(0, "7")], shapes=[], geometries=[], collectives=[], devices=[],
            host=make_events(HostEvents, kind=kind, name=name, thread=thread, sequence=sequence,
                        parent=parent, start=range(size), duration=[1] * size),
            device=make_events(DeviceEvents, kind=device_kind, name=kernel, launch=launch,
                          stream=[0] * count, start=range(count), duration=[1] * count),
            memory=make_events(MemoryEvents), syncs=make_events(SyncEvents),
            span=(0, size), rank=None,
            world_size=None, backend=None, quality=Quality(),
        )  # fmt: skip


def named(timeline: Timeline, index: int) -> str:
    return timeline.name_of(timeline.host.name[index]) if index >= 0 else ""


def phase(attribution: Attribution, event: int) -> str:
    return STEP_PHASES[attribution.phase[event]]


@given(st.lists(st.tuples(st.integers(0, 10**6), st.booleans()), max_size=60))
def test_nearest_marked_ancestor_is_what_walking_up_finds(rows: list[tuple[int, bool]]) -> None:
    parent = np.array([p % (n + 1) - 1 for n, (p, _) in enumerate(rows)], np.int32)
    marked = np.array([m for _, m in rows], bool)
    found = nearest(parent, marked)
    assert found[-1] == NOTHING
    for n in range(len(rows)):
        at = n
        while at >= 0 and not marked[at]:
            at = int(parent[at])
        assert found[n] == at


def test_operators_are_the_innermost_and_outermost_around_the_launch() -> None:
    r = Recording()
    k = r.call((ANNOTATION, "ProfilerStep#1"), (OPERATOR, "aten::linear"), (OPERATOR, "aten::mm"))
    t = r.timeline()
    a = attribute(t)
    assert (named(t, a.operator[k]), named(t, a.top[k])) == ("aten::mm", "aten::linear")
    assert phase(a, k) == "forward"


def test_backward_work_gets_module_and_line_of_its_forward_operator() -> None:
    r = Recording()
    frames = ((PYTHON, "train.py(5): main"), (PYTHON, "nn.Module: Net_0"),
              (PYTHON, "torch/nn/modules/module.py(9): _call_impl"),
              (PYTHON, "nn.Module: Conv2d_1"))  # fmt: skip
    f = r.call(*frames, (OPERATOR, "aten::conv2d", 7), (OPERATOR, "aten::convolution", 7))
    b = r.call((OPERATOR, NODE + "ConvolutionBackward0", 7), (OPERATOR, "ConvolutionBackward0", 7),
               (OPERATOR, "aten::convolution_backward"), thread=1)  # fmt: skip
    t = r.timeline()
    a = attribute(t)
    assert [phase(a, k) for k in (f, b)] == ["forward", "backward"]
    assert [a.modules[a.module[k]] for k in (f, b)] == ["Net_0.Conv2d_1"] * 2
    assert [t.name_of(a.line[k]) for k in (f, b)] == ["train.py(5): main"] * 2
    assert named(t, a.top[b]) == "ConvolutionBackward0"
    assert named(t, a.forward[b]) == "aten::convolution"
    assert a.forward[f] == NOTHING


def test_of_operators_with_the_same_number_the_last_made_the_node() -> None:
    r = Recording()
    r.call((PYTHON, "a.py(1): f"), (OPERATOR, "aten::empty", 3))
    r.call((PYTHON, "b.py(2): g"), (OPERATOR, "aten::mul", 3))
    b = r.call((OPERATOR, NODE + "MulBackward0", 3), (OPERATOR, "MulBackward0", 3), thread=1)
    t = r.timeline()
    assert t.name_of(attribute(t).line[b]) == "b.py(2): g"


def test_recomputation_inside_backward_is_backward_but_its_own_operator() -> None:
    r = Recording()
    r.call((PYTHON, "nn.Module: Net_0"), (PYTHON, "nn.Module: Block_0"), (OPERATOR, "aten::mm", 20))
    k = r.call((OPERATOR, NODE + "MmBackward0", 20), (OPERATOR, "MmBackward0", 20),
               (PYTHON, "model.py(3): forward"), (PYTHON, "nn.Module: Block_0"),
               (OPERATOR, "aten::linear", 4), (OPERATOR, "aten::addmm", 4), thread=1)  # fmt: skip
    t = r.timeline()
    a = attribute(t)
    assert phase(a, k) == "backward"
    assert a.recomputed.tolist() == [False, True]
    assert named(t, a.top[k]) == "aten::linear"
    assert a.modules[a.module[k]] == "Net_0.Block_0"  # rooted where the model runs
    assert t.name_of(a.line[k]) == "model.py(3): forward"


@pytest.mark.parametrize(
    ("chain", "kernel", "expected"),
    [
        ([(ANNOTATION, "Optimizer.step#SGD.step"), (OPERATOR, "aten::add_")], "k", "optimizer"),
        ([(ANNOTATION, "Optimizer.zero_grad#SGD"), (OPERATOR, "aten::zero_")], "k", "optimizer"),
        ([(OPERATOR, "aten::_fused_adamw_")], "k", "optimizer"),
        ([(PYTHON, "torch/optim/sgd.py(80): step"), (OPERATOR, "aten::add_")], "k", "optimizer"),
        ([(OPERATOR, "aten::copy_")], "Memcpy HtoD (Pinned -> Device)", "h2d"),
        ([(OPERATOR, "aten::item")], "Memcpy DtoH (Device -> Pinned)", "other"),
        ([(ANNOTATION, "enumerate(DataLoader)#x"), (OPERATOR, "aten::add")], "k", "data_wait"),
        ([(PYTHON, "nn.Module: Net_0")], "triton_", "forward"),
        ([], "k", "other"),
    ],
)
def test_phase(chain: list[tuple], kernel: str, expected: str) -> None:
    r = Recording()
    k = r.call(*chain, kernel=kernel)
    assert phase(attribute(r.timeline()), k) == expected


def test_a_thread_that_mostly_runs_nodes_is_autograds_even_without_its_name() -> None:
    r = Recording()
    r.threads = [Thread("1", "1", "python"), Thread("1", "2", "python")]
    for _ in range(2):
        r.call((OPERATOR, NODE + "AddBackward0", 1), thread=1)
    late = r.call((OPERATOR, "torch.distributed.ddp.reducer::copy_bucket_to_grad"), thread=1)
    forward = r.call((OPERATOR, "aten::add", 1))
    a = attribute(r.timeline())
    assert [phase(a, k) for k in (late, forward)] == ["backward", "forward"]


def test_work_without_a_launch_is_found_by_the_operators_id() -> None:
    r = Recording()
    k = r.call((OPERATOR, "aten::mm"))
    t = r.timeline()
    t.device.launch[:] = NOTHING
    assert attribute(replace(t)).operator[k] == NOTHING
    t.host.external[0] = t.device.external[k] = 99
    assert named(t, attribute(t).operator[k]) == "aten::mm"


@pytest.mark.parametrize("name", ["resnet18_b32_h200", "gpt_b4x1024_bf16_h200"])
def test_operators_of_a_real_trace_equal_a_plain_walk(name: str) -> None:
    t = recorded(name)
    a = attribute(t)
    host = t.host
    for k in range(0, len(t.device), 23):
        at, chain = int(t.device.launch[k]), []
        while at >= 0:
            if host.kind[at] == OPERATOR and not named(t, at).startswith(NODE):
                chain.append(at)
            at = int(host.parent[at])
        assert (a.operator[k], a.top[k]) == (chain[0], chain[-1])


def test_every_kernel_of_a_recording_with_stacks_has_a_line_and_nearly_all_a_module() -> None:
    a = attribute(recorded("resnet18_b32_h200"))
    assert (a.line != NOTHING).all()
    assert (a.module != NOTHING).mean() > 0.97
    assert "ResNet_0.Sequential_1.BasicBlock_2.Conv2d_5" in a.modules


def test_checkpointing_is_seen_on_the_amd_trace() -> None:
    a = attribute(recorded("mi300_resnet_checkpointing_stacks"))
    assert np.count_nonzero(a.recomputed) == 615
    assert {STEP_PHASES[p] for p in np.unique(a.phase[a.recomputed])} == {"backward"}
    assert all(m.startswith("DistributedDataParallel_0") for m in a.modules)


def test_a_recording_without_device_has_nothing_to_attribute() -> None:
    a = attribute(recorded("cpu_only_rank34.pt.trace"))
    assert len(a.operator) == len(a.phase) == len(a.module) == 0
