"""Where a rank meets the others: collectives, and backward, at whose end gradients are exchanged.

A row of `meetings.npy` says when the rank came, when its own part was done and when it left. No
collective is added and none is changed. In backward the rank's own part is done when the engine has
run the whole graph: it then calls what was queued in the meantime, first ours, later what DDP and
FSDP wait for each other in. The clock is that of the machine, so that ranks on it can be compared.

A row is begun as the rank arrives: of one that is killed or hangs it shows where it stood.
"""

import functools
import inspect
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import get_ident
from time import monotonic_ns
from typing import Any
from zlib import crc32

import torch
from torch.compiler import is_compiling

from stepscope.probe.core import Core
from stepscope.probe.patches import Patches, drop_caller_frame
from stepscope.probe.unseen import unseen_by_program
from stepscope.record.facts import SiteKind
from stepscope.record.row_log import MEETING_COLUMNS, MEETINGS_FILE, MeetingKind
from stepscope.store.table import Table

_WIDTH = len(MEETING_COLUMNS)
_ARRIVED, _LEFT, _BYTES = map(MEETING_COLUMNS.index, ("arrived_ns", "left_ns", "bytes"))
_COLLECTIVES = {
    "all_reduce": MeetingKind.ALL_REDUCE,
    "broadcast": MeetingKind.BROADCAST,
    "_broadcast_coalesced": MeetingKind.BROADCAST,  # DDP's buffers, before a forward
    "reduce": MeetingKind.REDUCE,
    "all_gather": MeetingKind.ALL_GATHER,
    "all_gather_into_tensor": MeetingKind.ALL_GATHER,
    "all_gather_single": MeetingKind.ALL_GATHER,  # as torch 2.13 and later name it
    "gather": MeetingKind.GATHER,
    "scatter": MeetingKind.SCATTER,
    "reduce_scatter": MeetingKind.REDUCE_SCATTER,
    "reduce_scatter_tensor": MeetingKind.REDUCE_SCATTER,
    "reduce_scatter_single": MeetingKind.REDUCE_SCATTER,
    "all_to_all": MeetingKind.ALL_TO_ALL,
    "all_to_all_single": MeetingKind.ALL_TO_ALL,
    "barrier": MeetingKind.BARRIER,
    "monitored_barrier": MeetingKind.BARRIER,
}
_SIZED_BY = ("input_list", "input", "tensors")
"""Arguments that a collective's size is that of, before its first one. Of an all-gather it is the
whole output's."""


class Meetings:
    """The log of one rank's meetings; only its observed thread writes."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._table = Table(Path(core.options.folder) / MEETINGS_FILE, MEETING_COLUMNS)
        self._cells = self._table.cells
        self._rows = 0
        self._open = False
        self._off = False

    def begin(self, kind: MeetingKind, group: Any = None, asynchronous: bool = False) -> int:
        """A meeting begins. Its row; -1 inside another one, in other threads, and where nothing is
        observed. Raises OSError on a full disk."""
        core = self._core
        if self._open or self._off or core.log.off or get_ident() != core.log.thread:
            return -1
        if self._rows == self._table.rows:
            self._cells = self._table.grow()
        row, self._open = self._rows, True
        self._rows += 1
        name, size = (0, 0) if group is None else _identity(group)
        gradients = kind is MeetingKind.GRADIENTS
        look = core.find_lines and not gradients
        site = core.sites.locate(SiteKind.COLLECTIVE, 3) if look else -1
        now = monotonic_ns()
        numbers = (0 if gradients else now, 0, kind, name, size, 0, site, asynchronous)
        at = row * _WIDTH
        for place, number in enumerate(numbers, at + 1):
            self._cells[place] = number
        self._cells[at] = now  # last: a row that has begun is whole
        return row

    def arrived(self, row: int) -> None:
        """The rank's own part of a meeting is done."""
        self._cells[row * _WIDTH + _ARRIVED] = monotonic_ns()

    def sized(self, row: int, nbytes: int) -> None:
        self._cells[row * _WIDTH + _BYTES] = nbytes

    def left(self, row: int) -> None:
        """The call has returned."""
        self._open = False
        if not self._off:
            self._cells[row * _WIDTH + _LEFT] = monotonic_ns()

    def fail(self, problem: Exception) -> None:
        self._off = True
        self._core.guard(problem)

    def close(self) -> None:
        self._off = True
        self._cells = memoryview(b"").cast("d")
        self._table.close(self._rows)


def watch_meetings(core: Core) -> None:
    """Log this rank's meetings from now on. It has joined its process group."""
    from torch import distributed
    from torch.distributed import distributed_c10d

    meetings, patches = Meetings(core), Patches()
    patches.set(torch.autograd, "backward", _backward(meetings, torch.autograd.backward))
    for name, kind in _COLLECTIVES.items():
        original = getattr(distributed_c10d, name, None) or getattr(distributed, name, None)
        if original is None:
            continue
        watched = _collective(meetings, original, kind)
        for module in (distributed_c10d, distributed):
            if vars(module).get(name) is original:
                patches.set(module, name, watched)
    core.on_end += [patches.restore, meetings.close]


def _backward(meetings: Meetings, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        row, hook = -1, None
        try:
            if not is_compiling():
                row = meetings.begin(MeetingKind.GRADIENTS)
                hook = _call_when_done(tensors, meetings, row) if row >= 0 else None
        except Exception as problem:
            meetings.fail(problem)
        try:
            return original(tensors, *args, **kwargs)
        except BaseException as error:
            drop_caller_frame(error)
            raise
        finally:
            if row >= 0:
                meetings.left(row)
            if hook is not None:
                hook.remove()

    return backward


def _call_when_done(tensors: Any, meetings: Meetings, row: int) -> Any:
    """Have the engine say when it has run the whole graph of a backward, before anything else that
    is queued until then. The hook that asks for it; None where there is no graph, or it is compiled
    as a whole."""
    compiled = sys.modules.get("torch._dynamo.compiled_autograd")
    if getattr(compiled, "compiled_autograd_enabled", False):
        return None
    first = tensors[0] if isinstance(tensors, Sequence) and len(tensors) else tensors
    with unseen_by_program():
        node = getattr(first, "grad_fn", None)
    if node is None:
        return None

    def begun(_: Any) -> None:
        torch.autograd.Variable._execution_engine.queue_callback(lambda: meetings.arrived(row))

    return node.register_prehook(begun)


def _collective(
    meetings: Meetings, original: Callable[..., Any], kind: MeetingKind
) -> Callable[..., Any]:
    names = _argument_names(original)

    @functools.wraps(original)
    def collective(*args: Any, **kwargs: Any) -> Any:
        row = -1
        try:
            if not is_compiling():
                given = {**dict(zip(names, args, strict=False)), **kwargs}
                group = given.get("group", given.get("process_group"))
                row = meetings.begin(kind, group, bool(given.get("async_op")))
                if row >= 0:
                    meetings.sized(row, _size(given, names))
        except Exception as problem:
            meetings.fail(problem)
        try:
            return original(*args, **kwargs)
        except BaseException as error:
            drop_caller_frame(error)
            raise
        finally:
            if row >= 0:
                meetings.left(row)

    return collective


def _argument_names(function: Callable[..., Any]) -> list[str]:
    try:
        return list(inspect.signature(function).parameters)
    except ValueError:  # of C++: `_broadcast_coalesced`
        return ["process_group", "tensors", "buffer_size", "src"]


def _identity(group: Any) -> tuple[int, int]:
    """The same number in all ranks of a process group, and how many they are."""
    return crc32(str(group.group_name).encode()), int(group.size())


def _size(given: dict[str, Any], names: list[str]) -> int:
    """Bytes of a collective; 0 where it moves nothing."""
    first = [names[0]] if names else []
    value = next((given[name] for name in (*_SIZED_BY, *first) if name in given), None)
    if isinstance(value, torch.Tensor):
        value = [value]
    if not isinstance(value, list | tuple):
        return 0
    with unseen_by_program():
        tensors = [one for one in value if isinstance(one, torch.Tensor)]
        return sum(one.numel() * one.element_size() for one in tensors)
