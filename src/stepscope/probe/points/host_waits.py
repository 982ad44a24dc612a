"""Where the host waits: tensors moved to the device, synchronisations, values read back,
checkpoints written.
"""

import functools
from typing import Any

import torch
from torch.compiler import is_compiling

from stepscope.probe.core import Core, call_in_phase
from stepscope.probe.patches import Patches, drop_caller_frame
from stepscope.probe.row_log import H2D, SAVE, WAIT
from stepscope.probe.sites import SiteKey
from stepscope.record.facts import ProblemFact, SiteKind
from stepscope.record.kinds import HostWait
from stepscope.record.problems import ProblemKind
from stepscope.record.row_log import RowKind


def patch_saving(core: Core, patches: Patches, module: Any = torch) -> None:
    """Time what writes checkpoints in torch or safetensors.torch; a nested call counts once."""

    def timed(original: Any) -> Any:
        @functools.wraps(original)
        def save(*args: Any, **kwargs: Any) -> Any:
            try:
                return call_in_phase(core, SAVE, SiteKind.SAVE, original, args, kwargs)
            finally:
                if core.log.observed() and core.log.depth == 0:
                    core.end_row(RowKind.SAVE)

        return save

    for name in ("save",) if module is torch else ("save_file", "save_model"):
        if hasattr(module, name):
            save = timed(getattr(module, name))
            for owner in (module, torch.serialization) if module is torch else (module,):
                patches.set(owner, name, save)  # where pickle looks for it, too


_READS = ("item", "tolist", "cpu", "numpy", "__bool__", "__float__", "__int__", "__index__")
_COPY, _PAGEABLE, _TO_CPU = HostWait.COPY, HostWait.PAGEABLE_COPY, HostWait.TO_CPU
_PINNED: SiteKey = SiteKind.H2D
_SHAPES = ("nonzero", "masked_select", "unique")  # the host needs to know how large the result is


def patch_waits(core: Core, patches: Patches) -> None:
    """Patch the tensor's ways off and onto a device, and explicit synchronisation. A CPU build of
    torch has nothing to wait for: nothing is patched."""
    if torch.version.cuda is None and torch.version.hip is None:
        return
    for name in (*_READS, *_SHAPES):
        original = getattr(torch.Tensor, name)
        patches.set(torch.Tensor, name, _reading(core, original, HostWait(name.strip("_"))))
    patches.set(torch, "nonzero", _reading(core, torch.nonzero, HostWait.NONZERO))
    patches.set(torch.Tensor, "to", _moving(core, torch.Tensor.to, "to"))
    patches.set(torch.Tensor, "cuda", _moving(core, torch.Tensor.cuda, "cuda"))
    for owner, wait in (
        (torch.cuda, HostWait.SYNCHRONIZE),
        (torch.cuda.Event, HostWait.EVENT_SYNCHRONIZE),
        (torch.cuda.Stream, HostWait.STREAM_SYNCHRONIZE),
    ):
        patches.set(owner, "synchronize", _waiting(core, owner.synchronize, wait))


def patch_sync_warnings(core: Core, patches: Patches, waits: Patches) -> None:
    """Patch what has torch warn of waits. A warning names the function that is running: it is not
    to be ours, so those of `waits` that may be do not stay."""
    original = getattr(torch.cuda, "set_sync_debug_mode", None)
    if original is None:
        return

    @functools.wraps(original)
    def set_sync_debug_mode(debug_mode: Any) -> None:
        try:
            if debug_mode in (1, "warn") and not core.log.off:
                waits.release(torch, "nonzero")
                if waits.release(torch.Tensor):
                    core.facts.write(ProblemFact(kind=ProblemKind.WAITS_UNSEEN))
        except Exception as problem:
            core.guard(problem)
        try:
            original(debug_mode)
        except BaseException as error:
            drop_caller_frame(error)
            raise

    patches.set(torch.cuda, "set_sync_debug_mode", set_sync_debug_mode)


def _waits(core: Core, wait: HostWait, call: Any, args: Any, kwargs: Any) -> Any:
    """A call in which the host waits for the device; the observer's own are not counted."""
    try:
        if core.log.observing or core.log.unclocked:
            return call(*args, **kwargs)
        return call_in_phase(core, WAIT, core.wait_site(wait), call, args, kwargs)
    except BaseException as error:
        drop_caller_frame(error)
        raise


def _waiting(core: Core, original: Any, kind: HostWait) -> Any:
    @functools.wraps(original)
    def wait(*args: Any, **kwargs: Any) -> Any:
        if core.compiles and is_compiling():
            return original(*args, **kwargs)
        try:
            return _waits(core, kind, original, args, kwargs)
        except BaseException as error:
            drop_caller_frame(error)
            raise

    return wait


def _reading(core: Core, original: Any, kind: HostWait) -> Any:
    @functools.wraps(original)
    def read(*args: Any, **kwargs: Any) -> Any:
        with torch._C.DisableTorchFunction():
            on_device = args and getattr(args[0], "is_cuda", False)
        try:
            if not on_device or (core.compiles and is_compiling()):
                return original(*args, **kwargs)
            return _waits(core, kind, original, args, kwargs)
        except BaseException as error:
            drop_caller_frame(error)
            raise

    return read


def _moving(core: Core, original: Any, what: str) -> Any:
    device, log, sites = core.device, core.log, core.sites
    copies: dict[int, int] = {}  # a line that copies → its site, by the memory it copies from
    kinds: dict[Any, str | None] = {}  # names of devices seen

    def aim(args: Any, kwargs: Any) -> str | None:
        """The kind of device the arguments name; None for dtypes and the like."""
        target = args[0] if args else kwargs.get("device")
        if type(target) is str or type(target) is torch.device:
            kind = kinds.get(target)
            if kind is None:
                kinds[target] = kind = _kind(target)
            return kind
        if what == "cuda":
            return "cuda"
        return _kind(target) or _kind(kwargs.get("device"))

    def note(tensor: Any, elapsed_ns: int) -> None:
        try:
            line = sites.locate(core.wait_site(_COPY), 3)
            site = copies.get(line)
            with torch._C.DisableTorchFunction():
                if site is None or core.find_lines:  # asking whether memory is pinned is slow
                    kind = _PINNED if tensor.is_pinned() else core.wait_site(_PAGEABLE)
                    site = copies[line] = sites.locate(kind, 3)
                sites.add(site, elapsed_ns, tensor.nbytes)
        except Exception as problem:
            core.guard(problem)

    @functools.wraps(original)
    def move(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            if log.off or log.unclocked or (core.compiles and is_compiling()):
                return original(self, *args, **kwargs)
            with torch._C.DisableTorchFunction():
                on_device = self.is_cuda
            if on_device:
                if what == "to" and aim(args, kwargs) == "cpu":
                    return _waits(core, _TO_CPU, original, (self, *args), kwargs)
                return original(self, *args, **kwargs)
            if aim(args, kwargs) != "cuda":
                return original(self, *args, **kwargs)
            begun = log.enter(H2D)
            if not begun:
                return original(self, *args, **kwargs)
            if not device.active:
                device.activate()
            if device.timing:
                device.mark(H2D)
            try:
                return original(self, *args, **kwargs)
            finally:
                note(self, log.leave() - begun)
        except BaseException as error:
            drop_caller_frame(error)
            raise

    return move


def _kind(value: Any) -> str | None:
    """The kind of device an argument of `to` names; None for dtypes and the like."""
    if isinstance(value, torch.device):
        return str(value.type)
    if isinstance(value, str):
        return value.split(":")[0]
    if isinstance(value, torch.Tensor):
        return str(value.device.type)
    if isinstance(value, int) and not isinstance(value, bool):
        return "cuda"
    return None
