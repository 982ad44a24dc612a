"""What can go wrong while a program is observed, and the sentence that says so.

The kind and its detail travel; `Problem.text` is the one place that makes words of them.
"""

from enum import StrEnum

from stepscope.record.fields import Record


class ProblemKind(StrEnum):
    """What was lost. The program itself went on."""

    NOT_OBSERVED = "not_observed"
    RECORDING_STOPPED = "recording_stopped"
    NO_WINDOW = "no_window"
    TRACE_LOST = "trace_lost"
    NO_NVTX = "no_nvtx"
    NO_MEMORY_HISTORY = "no_memory_history"
    NOT_PERTURBED = "not_perturbed"
    NO_GRADIENT_NORM = "no_gradient_norm"
    NO_OUTPUTS = "no_outputs"
    NOT_SAMPLED = "not_sampled"
    SAMPLING_STOPPED = "sampling_stopped"
    STACKS_DENIED = "stacks_denied"
    STACKS_FAILED = "stacks_failed"
    STACKS_TIMED_OUT = "stacks_timed_out"
    TOO_SHORT_FOR_STACKS = "too_short_for_stacks"
    NO_SOURCES = "no_sources"
    NO_MEMORY_LINES = "no_memory_lines"
    CHILDREN_NOT_OBSERVED = "children_not_observed"
    NO_STEPS = "no_steps"
    NO_TORCH = "no_torch"
    OTHER = "other"
    """Recorded as a sentence by an earlier version."""


_TEXTS = {
    ProblemKind.NOT_OBSERVED: "not observed: {}",
    ProblemKind.RECORDING_STOPPED: "recording stopped after an internal error: {}",
    ProblemKind.NO_WINDOW: "kernel window failed to start: {}",
    ProblemKind.TRACE_LOST: "could not write the kernel trace: {}",
    ProblemKind.NO_NVTX: "--nvtx needs a CUDA build of torch: no ranges",
    ProblemKind.NO_MEMORY_HISTORY: "could not record CUDA's memory history: {}",
    ProblemKind.NOT_PERTURBED: "could not perturb the weights: {}",
    ProblemKind.NO_GRADIENT_NORM: "no gradient norms: {}",
    ProblemKind.NO_OUTPUTS: "could not keep outputs: {}",
    ProblemKind.NOT_SAMPLED: "machine not sampled: {}",
    ProblemKind.SAMPLING_STOPPED: "machine sampling stopped early: {}",
    ProblemKind.STACKS_DENIED: "py-spy: permission denied (ptrace). Run as root, add"
    " --cap-add SYS_PTRACE to the container, or set kernel.yama.ptrace_scope=0",
    ProblemKind.STACKS_FAILED: "py-spy failed: {}",
    ProblemKind.STACKS_TIMED_OUT: "py-spy timed out; no Python stacks recorded",
    ProblemKind.TOO_SHORT_FOR_STACKS: "py-spy saw no Python code: the program was too short",
    ProblemKind.NO_SOURCES: "could not save source lines: {}",
    ProblemKind.NO_MEMORY_LINES: "no memory lines: {}",
    ProblemKind.CHILDREN_NOT_OBSERVED: "child processes not observed: {}",
    ProblemKind.NO_STEPS: "no steps seen: no optimizer, model or DataLoader was called."
    " Call stepscope.step() once per iteration.",
    ProblemKind.NO_TORCH: "no steps seen: the program did not import torch",
    ProblemKind.OTHER: "{}",
}


class Problem(Record):
    """Something that was not recorded, and why."""

    kind: ProblemKind
    detail: str = ""

    @property
    def text(self) -> str:
        """One line for the user."""
        return _TEXTS[self.kind].format(self.detail)
