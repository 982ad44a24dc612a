"""Keep only the inputs of repeated blocks and compute the rest again in backward."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from stepscope.analyze.replay.known import Changes, KnownProgram
from stepscope.fixes.base import Fix, FixContext, FixKind, SourceEdit
from stepscope.fixes.launching.compile import is_compiled
from stepscope.record.fix import Applied, Broke, NotApplied, Reason, Target


class _ChangingBuffers:
    """Which buffers of which blocks change, learnt at a block's first run."""

    def __init__(self) -> None:
        self._changing: WeakKeyDictionary[Any, list[str]] = WeakKeyDictionary()

    def before(self, block: Any) -> dict[str, Any]:
        """What buffers hold before a run, as far as its result depends on it.

        That of a BatchNorm in training does not depend on the running statistics.
        """
        known = self._changing.get(block)
        names = dict(block.named_buffers()) if known is None else known
        skipped = _statistics(block)
        return {name: block.get_buffer(name).clone() for name in names if name not in skipped}

    def learn(self, block: Any, versions: dict[str, int]) -> None:
        """After the first run: those whose version has gone up changed."""
        if block not in self._changing:
            self._changing[block] = [
                name for name, buffer in block.named_buffers() if buffer._version != versions[name]
            ]

    def versions(self, block: Any) -> dict[str, int]:
        """How often each buffer has been changed so far; empty once that is of no interest."""
        if block in self._changing:
            return {}
        return {name: buffer._version for name, buffer in block.named_buffers()}

    def again(self, block: Any, before: dict[str, Any]) -> AbstractContextManager[None]:
        """Around the second run: buffers as they were before the first, then as they are now."""
        changing = [*self._changing.get(block, ()), *_statistics(block)]
        return _swapped(block, dict.fromkeys(changing), before) if changing else nullcontext()


@contextmanager
def _swapped(block: Any, names: dict[str, None], before: dict[str, Any]) -> Iterator[None]:
    now = {name: block.get_buffer(name).clone() for name in names}
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
    """Outermost modules that stand in a row with others of their class and have parts.

    Empty where they hold less than half of the model's layers.
    """
    from torch.nn import ModuleDict, ModuleList, Sequential

    found: dict[int, Any] = {}
    waiting = [root]
    while waiting:
        module = waiting.pop()
        children = list(module.children())
        row = isinstance(module, ModuleList | ModuleDict | Sequential)
        for child in children:
            if row and _is_repeated(child, children):
                found[id(child)] = child
            else:
                waiting.append(child)
    blocks = list(found.values())
    return blocks if 2 * sum(map(_layers, blocks)) >= _layers(root) else []


def _self_checkpointing(root: Any) -> list[Any]:
    """Outermost models that can checkpoint their own layers, as those of transformers can."""
    if getattr(root, "supports_gradient_checkpointing", False) and hasattr(
        root, "gradient_checkpointing_enable"
    ):
        return [root]
    return [model for child in root.children() for model in _self_checkpointing(child)]


def _is_repeated(module: Any, row: list[Any]) -> bool:
    alike = sum(type(other) is type(module) for other in row)
    return alike > 1 and next(module.children(), None) is not None


def _layers(module: Any) -> int:
    """Modules without parts inside one."""
    return sum(next(part.children(), None) is None for part in module.modules())


class Checkpointing(Fix):
    """Random numbers are drawn again as they were, and buffers are put back: nothing changes.

    Inside compiled code blocks cannot be taken hold of, so it does not go with `compile`.
    """

    name = "checkpointing"
    group = "memory"
    title = "compute activations of repeated blocks again in backward instead of keeping them"
    edited_by_hand = True
    kind = FixKind.EXACT
    effort = "one line per kind of block"
    bad_with = ("compile",)
    missing = "no model was called"
    saves_memory = True

    def predict(self, value: str | None, known: KnownProgram) -> Changes:
        """Backward does the forward again: this costs time. None where phases are not known."""
        from stepscope.analyze.replay.changes import scale_phase

        phases = known.show.phases_ms if known.show else {}
        forward, backward = phases.get("forward", 0.0), phases.get("backward", 0.0)
        return [scale_phase("backward", 1 + forward / backward)] if backward else None

    def install(self, value: Any, hands: FixContext) -> None:
        blocks: WeakSet[Any] = WeakSet()
        handler = _checkpointed(blocks, hands)
        held: set[type] = set()

        def found(module: Any) -> None:
            name, place = type(module).__qualname__, hands.place()
            reason = _out_of_reach(module)
            offers = _self_checkpointing(module)
            if reason is None and offers:
                _enable(offers, module, hands)
                return
            chosen = [] if reason else _repeated_blocks(module)
            if not chosen:
                reason = reason or Reason.NO_REPEATED_BLOCKS
                hands.not_applied(NotApplied(reason, Target.MODEL, name, place))
                return
            for block in chosen:
                blocks.add(block)
                cls = next(base for base in type(block).__mro__ if "forward" in vars(base))
                if cls not in held:
                    held.add(cls)
                    hands.seams.around(cls, "forward", handler)
            kinds = ", ".join(sorted({type(block).__qualname__ for block in chosen}))
            hands.applied(Applied(Target.BLOCKS, name, place, count=len(chosen), detail=kinds))

        hands.seams.root_found(found)

    def explain(self, error: BaseException, line: str) -> Broke | None:
        if type(error).__name__ == "CheckpointError":
            return Broke(Reason.RECOMPUTED_DIFFERENTLY)
        return None

    def edit(self, value: Any, line: str) -> SourceEdit:
        return SourceEdit(
            "call each repeated block by torch.utils.checkpoint.checkpoint(block, x, "
            "use_reentrant=False); models of transformers: model.gradient_checkpointing_enable()"
        )


def _out_of_reach(module: Any) -> Reason | None:
    """Why nothing inside a model can be taken hold of."""
    import torch

    if is_compiled(module):
        return Reason.PROGRAM_COMPILES
    if any(isinstance(part, torch.jit.ScriptModule) for part in module.modules()):
        return Reason.TORCHSCRIPT
    return None


def _enable(models: list[Any], root: Any, hands: FixContext) -> None:
    """Models of transformers know best how: they leave their caches out."""
    name, place = type(root).__qualname__, hands.place()
    for model in models:
        if getattr(model, "is_gradient_checkpointing", False):
            hands.not_applied(NotApplied(Reason.CHECKPOINTING_ALREADY, Target.MODEL, name, place))
            continue
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        part = "" if model is root else f"{type(model).__qualname__} in "
        hands.applied(Applied(Target.OWN_LAYERS, name, place, detail=part))


def _checkpointed(blocks: WeakSet[Any], hands: FixContext) -> Any:
    """The handler around `forward` of classes that blocks are of."""
    import torch
    from torch.utils.checkpoint import checkpoint

    buffers = _ChangingBuffers()
    unseen = hands.seams.unseen

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
                return unseen(call, block, *args, **kwargs)

        result = checkpoint(run, *args, use_reentrant=False, **kwargs)
        buffers.learn(block, versions)
        return result

    return forward


FIX = Checkpointing()
