"""What can go wrong while a program is observed, and the sentence that says so.

The kind and its detail travel; only `Problem.text` makes words of them. Only this module decides
whether foreign text means that memory ran out.
"""

import re

from stepscope.record.fields import Record
from stepscope.record.kinds import WordedEnum


class ProblemKind(WordedEnum):
    """What was lost while the program itself went on."""

    NOT_OBSERVED = "not_observed", "not observed: {}"
    RECORDING_STOPPED = "recording_stopped", "recording stopped after an internal error: {}"
    NO_WINDOW = "no_window", "no kernel window: {}"
    NO_STACKS = "no_stacks", "no Python stacks of kernels: {}"
    TRACE_LOST = "trace_lost", "could not write the kernel trace: {}"
    NO_NVTX = "no_nvtx", "--nvtx needs a CUDA build of torch: no ranges"
    NO_MEMORY_HISTORY = "no_memory_history", "could not record CUDA's memory history: {}"
    NOT_PERTURBED = "not_perturbed", "could not perturb the weights: {}"
    NO_GRADIENT_NORM = "no_gradient_norm", "no gradient norms: {}"
    NO_STATE = "no_state", "final state not recorded: {}"
    NO_OUTPUTS = "no_outputs", "could not keep outputs: {}"
    NOT_SAMPLED = "not_sampled", "machine not sampled: {}"
    SAMPLING_STOPPED = "sampling_stopped", "machine sampling stopped early: {}"
    STACKS_DENIED = (
        "stacks_denied",
        "py-spy: permission denied (ptrace). Run as root, add --cap-add SYS_PTRACE to the"
        " container, or set kernel.yama.ptrace_scope=0",
    )
    STACKS_FAILED = "stacks_failed", "py-spy failed: {}"
    STACKS_TIMED_OUT = "stacks_timed_out", "py-spy timed out; no Python stacks recorded"
    TOO_SHORT_FOR_STACKS = (
        "too_short_for_stacks",
        "py-spy saw no Python code: the program was too short",
    )
    NO_SOURCES = "no_sources", "could not save source lines: {}"
    NO_MEMORY_LINES = "no_memory_lines", "no memory lines: {}"
    CHILDREN_NOT_OBSERVED = (
        "children_not_observed",
        "not observed: {count} child process{es} ({})",
    )
    OTHER_THREADS = (
        "other_threads",
        "steps are partial: {count} more ran in other threads",
    )
    PROFILED_ITSELF = (
        "profiled_itself",
        "steps are partial: none are observed while the program profiles its Python calls",
    )
    WAITS_UNSEEN = (
        "waits_unseen",
        "reads from the device are not recorded as waits: torch.cuda.set_sync_debug_mode warns of"
        " them and would name stepscope",
    )
    NO_STEPS = (
        "no_steps",
        "no steps seen: no optimizer, model or DataLoader was called."
        " Call stepscope.step() once per iteration.",
    )
    NO_STEPS_YET = "no_steps_yet", "no steps seen: the program was ended before its first"
    NO_TORCH = "no_torch", "no steps seen: the program did not import torch"
    OTHER = "other", "{}"
    """A sentence recorded by an earlier version."""


class Problem(Record):
    """Something that was not recorded, and why."""

    kind: ProblemKind
    detail: str = ""
    count: int = 0

    @property
    def text(self) -> str:
        """One line for the user."""
        plural = "" if self.count == 1 else "es"
        return self.kind.words.format(self.detail, count=self.count, es=plural)


_TYPES = ("OutOfMemoryError", "MemoryError", "_ArrayMemoryError")
_MESSAGES = (
    "out of memory",
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
    "Unable to allocate",
    "Cannot allocate memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)
_UNDER_A_LIMIT = ("bad_alloc", "can't start new thread", "could not create a primitive")
_LIBRARIES = re.compile(r"(?i)cannot allocate memory|bad_alloc|libgomp: Thread creation failed")


def is_out_of_memory(type_name: str, message: str, limited: bool = False) -> bool:
    """Whether an exception means that host or device memory ran out.

    `limited`: the process has its own memory limit, which libraries report differently.
    """
    if type_name.rsplit(".", 1)[-1] in _TYPES:
        return True
    return any(text in message for text in (*_MESSAGES, *(_UNDER_A_LIMIT if limited else ())))


def is_device_error(type_name: str, message: str) -> bool:
    """Whether an exception means that a CUDA device failed or ran out of memory. Every later call
    on a failed device raises it again."""
    return type_name in ("AcceleratorError", "OutOfMemoryError") or message.startswith("CUDA error")


def says_out_of_memory(line: str) -> bool:
    """The same for the last line of stderr, from a traceback or a library that ends the process."""
    type_name, _, message = line.partition(":")
    return is_out_of_memory(type_name, message) or _LIBRARIES.search(line) is not None
