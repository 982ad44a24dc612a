"""FLOPs and bytes: equal to torch's own counter where it counts, and to figures done by hand."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain import read_plain

from stepscope.analyze.timeline.attribution import attribute
from stepscope.analyze.timeline.roofline.operator_costs import (
    _FORMULAS,
    operator_cost,
    operator_weight,
)
from stepscope.analyze.timeline.roofline.operator_inputs import DTYPES, Cost, read_inputs
from stepscope.analyze.timeline.roofline.operator_work import operator_work
from stepscope.analyze.timeline.roofline.rates import roofline_of
from stepscope.record.timeline import Shapes

torch = pytest.importorskip("torch")


def shapes(*arguments: Any) -> Shapes:
    """Arguments as Kineto writes them: (dims, type), (dims, type, strides) or a plain value."""
    dims, types, strides, values = [], [], [], []
    for argument in arguments:
        tensor = isinstance(argument, tuple)
        dims.append(argument[0] if tensor else [])
        types.append(argument[1] if tensor else "Scalar")
        strides.append(argument[2] if tensor and len(argument) > 2 else [])
        values.append("" if tensor or argument is None else str(argument))
    return Shapes(*(json.dumps(part).encode() for part in (dims, types, strides, values)))


def cost(name: str, *arguments: Any, **known: Any) -> Cost:
    found = operator_cost(f"aten::{name}", shapes(*arguments), **known)
    assert found is not None
    return found


def x(*dims: int, kind: str = "float") -> tuple[list[int], str]:
    return list(dims), kind


def random(*dims: int) -> Any:
    return torch.randn(*dims, requires_grad=True)


def _recorded_flops(work: Callable[[], Any], folder: Path) -> float | None:
    cpu = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=cpu, record_shapes=True) as profiler:
        work()
    profiler.export_chrome_trace(str(folder / "trace.json"))
    timeline = read_plain(folder / "trace.json")
    attribution = attribute(timeline)
    found = roofline_of(timeline, attribution, operator_work(timeline, attribution), None)
    return found.step.matrix_flops


F = torch.nn.functional
CASES: dict[str, Callable[[], Any]] = {
    "mm": lambda: random(8, 16) @ random(16, 24),
    "broadcast": lambda: random(5, 1, 8, 16) @ random(3, 16, 24),
    "linear": lambda: F.linear(random(4, 8, 16), random(24, 16), random(24)),
    "baddbmm": lambda: torch.baddbmm(random(3, 8, 24), random(3, 8, 16), random(3, 16, 24)),
    "einsum": lambda: torch.einsum("bik,bkj->bij", random(3, 8, 16), random(3, 16, 24)),
    "conv1d": lambda: F.conv1d(random(2, 3, 33), random(8, 3, 5), dilation=2),
    "conv2d": lambda: F.conv2d(random(2, 3, 17, 15), random(8, 3, 3, 3), random(8), 2, 1),
    "conv3d": lambda: F.conv3d(random(2, 3, 7, 8, 9), random(4, 3, 3, 3, 3)),
    "frozen": lambda: F.conv2d(random(2, 3, 9, 9).detach(), random(8, 3, 3, 3)),
    "transposed": lambda: F.conv_transpose2d(random(2, 3, 9, 9), random(3, 8, 3, 3), None, 2, 1, 1),
}


@pytest.mark.parametrize("name", CASES)
def test_forward_and_backward_equal_torchs_counter(name: str, tmp_path: Path) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    def work() -> None:
        torch.sum(CASES[name]()).backward()

    with FlopCounterMode(display=False) as counter:
        work()
    assert _recorded_flops(work, tmp_path) == counter.get_total_flops()


def test_grouped_convolution_counts_the_channels_of_its_group() -> None:
    arguments = (x(2, 4, 10, 10), x(8, 2, 3, 3), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 2)
    forward = cost("convolution", *arguments)
    assert forward.flops == 2 * 2 * 8 * 8 * 8 * 2 * 9  # images, places, outputs, inputs, taps
    backward = cost("convolution_backward", x(2, 8, 8, 8), *arguments[:2], None, *arguments[3:],
                    [True, True, False])  # fmt: skip
    assert backward.flops == 2 * forward.flops


def test_attention_equals_torchs_formulas_and_a_causal_mask_halves_it(tmp_path: Path) -> None:
    from torch.utils.flop_counter import sdpa_backward_flop_count, sdpa_flop_count

    q, k = (2, 4, 64, 32), (2, 4, 48, 32)

    def work(causal: bool) -> Callable[[], None]:
        return lambda: torch.sum(
            F.scaled_dot_product_attention(random(*q), random(*k), random(*k), is_causal=causal)
        ).backward()

    theirs = sdpa_flop_count(q, k, k) + sdpa_backward_flop_count(q, q, k, k)
    assert _recorded_flops(work(False), tmp_path) == theirs
    assert _recorded_flops(work(True), tmp_path) == theirs / 2


@pytest.mark.parametrize(
    ("name", "first", "causal"),
    [
        ("_scaled_dot_product_flash_attention", 0, 4),
        ("_scaled_dot_product_efficient_attention", 0, 6),
        ("_scaled_dot_product_cudnn_attention", 0, 6),
        ("_cudnn_attention_forward", 0, 10),
        ("_scaled_dot_product_flash_attention_backward", 1, 11),
        ("_scaled_dot_product_efficient_attention_backward", 1, 11),
        ("_scaled_dot_product_cudnn_attention_backward", 1, 14),
        ("_cudnn_attention_backward", 1, 14),
    ],
)
def test_the_argument_that_says_causal_is_where_torch_keeps_it(
    name: str, first: int, causal: int
) -> None:
    schema = next(iter(getattr(torch.ops.aten, name)._schemas.values()))
    names = [argument.name for argument in schema.arguments]
    assert names.index("is_causal") == causal
    assert names.index("query") == first
    tensors = [x(2, 8, 128, 64, kind="c10::BFloat16")] * (first + 3)
    rest: list[Any] = [None] * (len(names) - len(tensors))
    rest[causal - len(tensors)] = False
    whole = cost(name, *tensors, *rest)
    one = 2 * 2 * 8 * 128 * 128 * 64
    assert whole.flops == (5 if first else 2) * one
    rest[causal - len(tensors)] = True
    assert cost(name, *tensors, *rest).flops == whole.flops // 2


def test_bytes_are_every_input_once_and_every_output_once() -> None:
    half = "c10::Half"
    mm = cost("addmm", x(24, kind=half), x(8, 16, kind=half), x(16, 24, kind=half))
    assert mm.bytes == 2 * (24 + 8 * 16 + 16 * 24 + 8 * 24)
    assert (mm.dtype, mm.matrix, mm.kind) == ("fp16", True, "matmul")
    conv = cost("cudnn_convolution", x(2, 3, 8, 8), x(4, 3, 3, 3), [1, 1], [1, 1], [1, 1], 1)
    assert conv.bytes == 4 * (2 * 3 * 64 + 4 * 27 + 2 * 4 * 64)
    assert cost("_int_mm", x(8, 16, kind="signed char"), x(16, 8, kind="signed char")).bytes == (
        8 * 16 * 2 + 8 * 8 * 4
    )


@pytest.mark.parametrize(
    ("name", "arguments", "flops", "least"),
    [
        ("add", (x(4, 1, 8), x(6, 8, kind="c10::BFloat16"), 1), 192, 32 * 4 + 48 * 2 + 192 * 4),
        ("add_", (x(4, 8, kind="c10::BFloat16"), x(4, 8), 1), 32, 32 * 2 + 32 * 4 + 32 * 2),
        ("mul", (x(4, 8, kind="c10::Half"), x()), 32, 32 * 2 + 4 + 32 * 2),
        ("eq", (x(10), x(10)), 10, 40 + 40 + 10),
        ("copy_", (x(10, kind="c10::Half"), x(10)), 0, 20 + 40),
        ("copy_", (x(10), ([10], "float", [0])), 0, 40 + 4),
        ("fill_", (x(5), 0), 0, 20),
        ("sum", (x(4, 8), [0], True), 32, 128 + 32),
        ("sum", (x(4, 8), None), 32, 128 + 4),
        ("mean", (x(4, 8), [-1, -2], True), 32, 128 + 4),
        ("_softmax", (x(4, 8), 1, False), 160, 128 + 128),
        ("native_layer_norm", (x(4, 8), [8], x(8), x(8), 1e-5), 256, 128 + 64 + 128),
        ("cudnn_batch_norm_backward", (x(2, 3, 4, 4), x(2, 3, 4, 4), x(3)), 11 * 96, 96 * 12 + 12),
        ("gather", (x(100, 8), 0, x(5, 8, kind="long int")), 0, 2 * 40 * 4 + 40 * 8),
        ("gather", (x(100, 8), 0, ([5, 8], "long int", [1, 0])), 0, 2 * 40 * 4 + 5 * 8),
        ("index_select", (x(100, 8), 0, x(5, kind="long int")), 0, 2 * 40 * 4 + 5 * 8),
        ("embedding", (x(100, 8), x(5, kind="long int"), -1), 0, 2 * 40 * 4 + 5 * 8),
        ("embedding_dense_backward", (x(5, 8), x(5, kind="long int"), 100), 40, 2 * 160 + 40),
        ("nll_loss_forward", (x(4, 100), x(4, kind="long int"), None, 1, -100), 4, 32 + 16),
        ("max_pool2d_with_indices", (x(2, 3, 8, 8), [2, 2], [], [0, 0], [1, 1], False),
         2 * 3 * 16 * 4, 384 * 4 + 96 * 12),
        ("native_dropout", (x(10), 0.5, True), 20, 40 + 50),
    ],
)  # fmt: skip
def test_figures_done_by_hand(name: str, arguments: Any, flops: int, least: int) -> None:
    found = cost(name, *arguments)
    assert (found.flops, found.bytes) == (flops, least)


def test_lists_count_when_their_dtype_is_known() -> None:
    sizes = [[10, 4], [6]]
    lists = [(sizes, "TensorList")] * 4
    assert operator_cost("aten::_fused_adamw_", shapes(*lists)) is None
    adam = cost("_fused_adamw_", *lists, list_dtype="float")
    assert adam.bytes == 46 * 4 * 7  # reads four lists, writes three
    six = [([], "TensorList")] * 6  # the last two: maxima, which may be none, and step counts
    whole = cost("_fused_adamw_", *six, list_dtype="float", list_elements=1000)
    assert whole.bytes == 1000 * 4 * 7
    for momentum, times in ((0, 3), (0.9, 5)):
        sgd = cost("_fused_sgd_", *six[:3], 0, momentum, list_dtype="float", list_elements=1000)
        assert sgd.bytes == 1000 * 4 * times
    long = [([], "TensorList")] * 2
    assert operator_cost("aten::_foreach_add_", shapes(*long, 1), "float") is None
    added = cost("_foreach_add_", *long, 1, list_dtype="c10::BFloat16", list_elements=1000)
    assert (added.flops, added.bytes) == (1000, 6000)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("aten::unheard_of", shapes(x(4))),
        ("aten::mm", Shapes()),
        ("aten::mm", shapes(x(4, 4))),
        ("aten::mm", shapes(x(4, 5), x(4, 5))),
        ("aten::mm", shapes(x(4, -5), x(-5, 5))),
        ("aten::mm", shapes(x(10**30, 5), x(5, 5))),
        ("aten::mm", Shapes(b"[[4,4],[4,4]]", b"[1,2", b"", b"")),
        ("aten::mm", Shapes(b"[" * 100_000, b"[]", b"", b"")),
        ("aten::mm", Shapes(b"3", b"4", b"5", b"6")),
        ("aten::add", shapes(x(3), x(4))),
        ("aten::convolution", shapes(x(2, 3, 8, 8), x(4, 3, 3, 3), None)),
        ("aten::convolution_backward", shapes(x(2, 3, 8, 8), x(4, 3, 3, 3), x(4, 3, 3, 3))),
        ("aten::scaled_dot_product_attention", shapes(x(2, 4, 8, 8), x(2, 4, 8, 8), x(8, 8))),
    ],
)
def test_what_the_shapes_do_not_tell_is_none(name: str, given: Shapes) -> None:
    assert operator_cost(name, given) is None


_NUMBER = st.one_of(st.integers(-2, 9), st.just(10**30), st.none(), st.booleans(), st.text("x"))
_ANYTHING = st.one_of(_NUMBER, st.lists(_NUMBER, max_size=5))
_ARGUMENT = st.one_of(
    _ANYTHING,
    st.tuples(st.lists(st.integers(0, 9), max_size=5), st.sampled_from(sorted(DTYPES))),
    st.tuples(_ANYTHING, st.one_of(st.just("TensorList"), _ANYTHING), _ANYTHING),
)


@given(st.sampled_from(sorted(_FORMULAS)), st.lists(_ARGUMENT, max_size=16))
def test_whatever_was_recorded_ends_in_a_finite_cost_or_none(name: str, given: list[Any]) -> None:
    found = operator_cost(name, shapes(*given), "float", 5)
    if found is not None:
        assert 0 <= float(found.flops) < 1e300
        assert found.bytes is None or 0 <= float(found.bytes) < 1e300


def test_values_are_read_as_what_they_are() -> None:
    inputs = read_inputs(shapes(x(2), [3, 3], True, 0.5, 7, "same"))
    assert inputs is not None
    assert inputs.values == [None, [3, 3], True, 0.5, 7, "same"]
    assert inputs.numbers(4, 2) == (7, 7)
    assert inputs.numbers(5, 2) is None


def test_a_product_weighs_more_than_its_helpers() -> None:
    names = ("aten::convolution", "aten::native_layer_norm", "aten::copy_", "aten::view")
    assert [operator_weight(name) for name in names] == [3, 2, 1, 0]
