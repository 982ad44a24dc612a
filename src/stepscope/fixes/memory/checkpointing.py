"""Keep only the inputs of repeated blocks and compute the rest again in backward."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from stepscope.analyze.replay.known import Changes, KnownProgram
from stepscope.fixes.base import Fix, FixContext, FixKind, SourceEdit
from stepscope.fixes.launching.compile import is_compiled
from stepscope.fixes.lazy import changes, torch
from stepscope.record.fix import (
    MODEL,
    PROGRAM_COMPILES,
    TORCHSCRIPT,
    Applied,
    Broke,
    NotApplied,
    Reason,
    Target,
)

BLOCKS = Target("blocks", "{count} blocks ({detail}) of {object}, called{at}")
OWN_LAYERS = Target("own_layers", "the layers of {detail}{object}, called{at}")
NO_REPEATED_BLOCKS = Reason(
    "no_repeated_blocks", "{subject}: no repeated blocks hold most of its layers"
)
CHECKPOINTING_ALREADY = Reason(
    "checkpointing_already", "{subject}: its gradient checkpointing is already on"
)
RECOMPUTED_DIFFERENTLY = Reason(
    "recomputed_differently", "a block computed something else when recomputed in backward"
)


class _ChangingBuffers:
    """Which buffers of which blocks change, learnt at a block's first run."""

    def __init__(self) -> None:
        self._changing: WeakKeyDictionary[Any, list[str]] = WeakKeyDictionary()

    def before(self, block: Any) -> dict[str, Any]:
        """What buffers hold before a run, as far as its result depends on it. That of a BatchNorm
        in training does not depend on the running statistics."""
        known = self._changing.get(block)
        names = dict(block.named_buffers()) if known is None else known
        skipped = _statistics(block)
        return {name: block.get_buffer(name).clone() for name in names if name not in skipped}

    def learn(self, block: Any, versions: dict[str, int]) -> None:
        """After the first run: those whose version has gone up changed."""
        if block not in self._changing:
            now = self.versions(block)
            self._changing[block] = [name for name in now if now[name] != versions[name]]

    def versions(self, block: Any) -> dict[str, int]:
        """How often each buffer has been changed so far; empty once that is of no interest."""
        if block in self._changing:
            return {}
        return {name: buffer._version for name, buffer in block.named_buffers()}

    @contextmanager
    def again(self, block: Any, before: dict[str, Any]) -> Iterator[None]:
        """Around the second run: buffers as they were before the first, then as they are now."""
        changing = {*self._changing.get(block, ()), *_statistics(block)}
        now = {name: block.get_buffer(name).clone() for name in changing}
        for name in now.keys() & before.keys():
            block.get_buffer(name).data.copy_(before[name])  # unseen by autograd
        try:
            yield
        finally:
            for name, value in now.items():
                block.get_buffer(name).data.copy_(value)


def _statistics(block: Any) -> list[str]:
    """Names of the running statistics of normalisations in training, which have a counter."""
    return [
        f"{name}.{buffer}" if name else buffer
        for name, module in block.named_modules()
        if module.training and getattr(module, "num_batches_tracked", None) is not None
        for buffer in ("running_mean", "running_var", "num_batches_tracked")
    ]


def _repeated_blocks(root: Any) -> list[Any]:
    """Outermost modules that stand in a row with others of their class and have parts. Empty where
    they hold less than half of the model's layers."""
    rows = (torch.nn.ModuleList, torch.nn.ModuleDict, torch.nn.Sequential)
    found: dict[int, Any] = {}
    waiting = [root]
    while waiting:
        module = waiting.pop()
        children = list(module.children())
        kinds = Counter(map(type, children)) if isinstance(module, rows) else Counter()
        for child in children:
            if kinds[type(child)] > 1 and next(child.children(), None) is not None:
                found[id(child)] = child
            else:
                waiting.append(child)
    blocks = list(found.values())
    return blocks if 2 * sum(map(_layers, blocks)) >= _layers(root) else []


def _self_checkpointing(root: Any) -> list[Any]:
    """Outermost models that can checkpoint their own layers, as those of transformers can."""
    supported = getattr(root, "supports_gradient_checkpointing", False)
    if supported and hasattr(root, "gradient_checkpointing_enable"):
        return [root]
    return [model for child in root.children() for model in _self_checkpointing(child)]


def _layers(module: Any) -> int:
    """Modules without parts inside one."""
    return sum(next(part.children(), None) is None for part in module.modules())


class Checkpointing(Fix):
    """Random numbers are drawn again as they were, and buffers are put back: nothing changes.
    Blocks inside compiled code cannot be wrapped, so it does not go with `compile`."""

    name = "checkpointing"
    group = "memory"
    title = "recompute activations of repeated blocks in backward"
    edited_by_hand = True
    kind = FixKind.EXACT
    effort = "one line per kind of block"
    bad_with = ("compile",)
    missing = "no model was called"
    saves_memory = True

    def predict(self, value: str | None, known: KnownProgram) -> Changes:
        """Backward does the forward again: this costs time. None where phases are not known."""
        phases = known.show.phases_ms if known.show else {}
        forward, backward = phases.get("forward", 0.0), phases.get("backward", 0.0)
        return [changes.scale_phase("backward", 1 + forward / backward)] if backward else None

    def install(self, value: Any, context: FixContext) -> None:
        blocks: WeakSet[Any] = WeakSet()
        buffers = _ChangingBuffers()
        wrapped: set[type] = set()

        def forward(call: Any, block: Any, *args: Any, **kwargs: Any) -> Any:
            if not block.training or not torch.is_grad_enabled() or block not in blocks:
                return call(block, *args, **kwargs)
            before, versions = buffers.before(block), buffers.versions(block)
            runs = 0

            def run(*args: Any, **kwargs: Any) -> Any:
                nonlocal runs
                runs += 1
                if runs == 1:
                    return call(block, *args, **kwargs)
                with buffers.again(block, before):
                    return context.seams.unseen(call, block, *args, **kwargs)

            checkpoint = torch.utils.checkpoint.checkpoint
            result = checkpoint(run, *args, use_reentrant=False, **kwargs)
            buffers.learn(block, versions)
            return result

        def found(module: Any) -> None:
            name, place = type(module).__qualname__, context.place()
            reason = None
            if is_compiled(module):
                reason = PROGRAM_COMPILES
            elif any(isinstance(part, torch.jit.ScriptModule) for part in module.modules()):
                reason = TORCHSCRIPT
            elif offers := _self_checkpointing(module):
                _enable(offers, module, context)
                return
            chosen = [] if reason else _repeated_blocks(module)
            if not chosen:
                reason = reason or NO_REPEATED_BLOCKS
                context.not_applied(NotApplied(reason, MODEL, name, place))
                return
            for block in chosen:
                blocks.add(block)
                cls = next(base for base in type(block).__mro__ if "forward" in vars(base))
                if cls not in wrapped:
                    wrapped.add(cls)
                    context.seams.around(cls, "forward", forward)
            kinds = ", ".join(sorted({type(block).__qualname__ for block in chosen}))
            context.applied(Applied(BLOCKS, name, place, count=len(chosen), detail=kinds))

        context.seams.root_found(found)

    def explain(self, error: BaseException, line: str) -> Broke | None:
        differs = type(error).__name__ == "CheckpointError"
        return Broke(RECOMPUTED_DIFFERENTLY) if differs else None

    def edit(self, value: Any, line: str) -> SourceEdit:
        return SourceEdit(
            "call each repeated block by torch.utils.checkpoint.checkpoint(block, x, "
            "use_reentrant=False); models of transformers: model.gradient_checkpointing_enable()"
        )


def _enable(models: list[Any], root: Any, context: FixContext) -> None:
    """Models of transformers know best how: they leave their caches out."""
    name, place = type(root).__qualname__, context.place()
    for model in models:
        if getattr(model, "is_gradient_checkpointing", False):
            context.not_applied(NotApplied(CHECKPOINTING_ALREADY, MODEL, name, place))
            continue
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        part = "" if model is root else f"{type(model).__qualname__} in "
        context.applied(Applied(OWN_LAYERS, name, place, detail=part))


FIX = Checkpointing()
