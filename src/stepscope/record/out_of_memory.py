"""Whether foreign text means that memory ran out: the one place that reads such messages."""

import re

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

    `limited`: the process has a memory limit of its own, which libraries report in other words.
    """
    if type_name.rsplit(".", 1)[-1] in _TYPES:
        return True
    return any(text in message for text in (*_MESSAGES, *(_UNDER_A_LIMIT if limited else ())))


def says_out_of_memory(line: str) -> bool:
    """The same of the last line of stderr: a traceback's, or of a library that ends the process."""
    type_name, _, message = line.partition(":")
    return is_out_of_memory(type_name, message) or _LIBRARIES.search(line) is not None
