"""Update all parameters in one fused kernel."""

from typing import Any

from stepscope.analyze.replay import known as replay
from stepscope.analyze.replay.known import Changes, KnownProgram
from stepscope.fixes.applicability import ALREADY_ON, ObservedProgram, ProgramPart, unsuitable
from stepscope.fixes.base import Fix, FixContext, FixKind, LiveProgram
from stepscope.fixes.inspect.models import (
    flag_refused,
    switch_optimizer_flag,
    torch_optimizer_name,
)
from stepscope.fixes.lazy import changes, torch
from stepscope.record.fix import NotApplied, Reason, Switch
from stepscope.record.trial import Rejection

_CACHE_BYTES = 64_000_000  # what caches hold, memory's rate does not bound
_STREAMS = 0.8  # of the memory's rate: what a fused step reaches
NOT_PLAIN_PARAMETER = Reason(
    "not_plain_parameter", "{subject}: it holds a {code}, not a plain parameter"
)
NOT_FLOATING = Reason("not_floating", "{subject}: it holds a parameter of {code}")
NO_KERNEL = Reason("no_kernel", "{subject}: torch has no fused kernel for it on {value}")
SPARSE_GRADIENTS = Reason(
    "sparse_gradients", "{subject}: fused optimizers do not support sparse gradients"
)
OTHER_LAYOUT = Reason(
    "other_layout", "{subject}: a gradient's memory layout differs from its parameter's"
)
_FAILURES = {
    "must have same dtype, device, and layout": Reason(
        "other_layout", "the fused kernel needs gradients laid out like their parameters"
    ),
    "fused=True.*floating point|floating point.*fused=True": Reason(
        "no_kernel", "a parameter of this optimizer cannot be updated by a fused kernel"
    ),
    "fused.*sparse|sparse.*fused": Reason(
        "sparse_gradients", "fused optimizers do not support sparse gradients"
    ),
}


class FusedOptimizer(Fix):
    """`fused=True` for torch's optimizers that have it. A GradScaler goes on unscaling the
    gradients itself: the optimizer does not announce that it could (`_step_supports_amp_scaling`),
    which Lightning would refuse to clip gradients with."""

    name = "fused_optimizer"
    group = "launch"
    title = "update all parameters in one fused kernel"
    kind = FixKind.NUMERIC
    effort = "one argument"
    bad_with = ("foreach",)
    missing = "no optimizer stepped"
    works_on = ProgramPart.OPTIMIZER
    switch = Switch.AT_STEP
    failures = _FAILURES
    argument = "fused"
    argument_of = ("AdamW", "Adam", "SGD", "Adagrad")

    def applies(self, program: ObservedProgram) -> Rejection | None:
        fused = all(one.get("fused") for one in program.optimizers)
        return unsuitable(ALREADY_ON) if fused else None

    def predict(self, value: str | None, known: KnownProgram) -> Changes:
        """One kernel that reads and writes a parameter's state once. None for an optimizer that has
        no such version, or has it on; nor on cores that others use: on a processor each parameter
        is shared out among all threads, and waits for the last one."""
        name = replay.fusible_optimizer(known)
        if name is None or (known.device == "cpu" and replay.threads_lack_cores(known)):
            return None
        step, rate = replay.FUSED_STEPS[name], replay.device_limits(known).bytes_per_s
        moved = (replay.trained_parameters(known) or 0) * 4 * step.passes
        now = replay.optimizer_ms(known) * 1e6
        least = moved / (rate * _STREAMS) * 1e9 if rate else 0.0
        if known.device == "cpu":
            # The steps show a rate too; a ceiling below it was measured on a busy machine.
            least = min(least, now * step.passes / step.eager_passes)
            fixed = min(now, replay.optimizer_calls(known) * replay.CPU_STEP_MS * 1e6)
            usual = fixed + (now - fixed) * step.cpu_share
            after = min(now, max(usual, least)) if moved > _CACHE_BYTES else usual
            return [changes.fuse_optimizer(host_ns=after)] if after else None
        factor = min(1.0, least / now) if least and now else step.passes / step.eager_passes
        return [changes.fuse_optimizer(device_factor=factor)]

    def check(self, live: LiveProgram) -> NotApplied | None:
        return flag_refused(self.argument, live, _misfit)

    def install(self, value: Any, context: FixContext) -> None:
        switch_optimizer_flag("fused", context, _prepared, _put_back)


def _prepared(optimizer: Any, group: dict[str, Any]) -> NotApplied | None:
    """As `_misfit`; where the kernel fits, step counts that an unfused optimizer keeps on the CPU
    are put where the kernel looks for them."""
    refused = _misfit(optimizer, group)
    for parameter in group["params"] if refused is None else ():
        state = optimizer.state.get(parameter, {})
        if torch.is_tensor(state.get("step")):
            state["step"] = state["step"].to(parameter.device, torch.float32)
    return refused


def _put_back(optimizer: Any) -> None:
    """Step counts to the CPU again; those of a device are read at once."""
    moved: dict[Any, list[dict[str, Any]]] = {}
    for group in optimizer.param_groups:
        for parameter in () if group.get("capturable") else group["params"]:
            state = optimizer.state.get(parameter, {})
            count = state.get("step")
            if torch.is_tensor(count) and not count.is_cpu:
                moved.setdefault(count.device, []).append(state)
    for states in moved.values():
        counts = torch.stack([state["step"] for state in states]).cpu()
        for state, count in zip(states, counts, strict=True):
            state["step"] = count.clone()


def _misfit(optimizer: Any, group: dict[str, Any]) -> NotApplied | None:
    """Why the parameters of a group cannot be updated by the fused kernel."""
    operator = f"aten::_fused_{str(torch_optimizer_name(optimizer)).lower()}_"
    for parameter in group["params"]:
        kind, grad = parameter.device.type, parameter.grad
        if type(parameter) not in (torch.Tensor, torch.nn.Parameter):
            return NotApplied(NOT_PLAIN_PARAMETER, code=type(parameter).__name__)
        if not parameter.is_floating_point():
            return NotApplied(NOT_FLOATING, code=str(parameter.dtype))
        if not torch._C._dispatch_has_kernel_for_dispatch_key(operator, kind.upper()):
            return NotApplied(NO_KERNEL, value=kind)
        if grad is not None and grad.is_sparse:
            return NotApplied(SPARSE_GRADIENTS)
        for other in (grad, *optimizer.state.get(parameter, {}).values()):
            alike = getattr(other, "shape", None) == parameter.shape  # kernels take them as one
            if alike and other.stride() != parameter.stride():
                return NotApplied(OTHER_LAYOUT)
    return None


FIX = FusedOptimizer()
