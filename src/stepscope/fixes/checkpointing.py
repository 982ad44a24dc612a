"""Keep only the inputs of repeated blocks and compute the rest again in backward."""

from typing import Any
from weakref import WeakSet

from stepscope.fixes.base import Edit, Fix, Hands, Kind
from stepscope.fixes.blocks_buffers import Buffers
from stepscope.fixes.blocks_find import offering, repeated_blocks
from stepscope.fixes.compile_tools import is_compiled


class Checkpointing(Fix):
    """Random numbers are drawn again as they were, and buffers are put back: nothing changes.

    Inside compiled code blocks cannot be taken hold of, so it does not go with `compile`.
    """

    name = "checkpointing"
    group = "memory"
    title = "compute activations of repeated blocks again in backward instead of keeping them"
    kind = Kind.EXACT
    effort = "one line per kind of block"
    bad_with = ("compile",)
    missing = "no model was called"

    def install(self, value: Any, hands: Hands) -> None:
        blocks: WeakSet[Any] = WeakSet()
        handler = _checkpointed(blocks, hands)
        held: set[type] = set()

        def found(module: Any) -> None:
            name = f"{type(module).__qualname__}, called at {hands.place()}"
            reason = _out_of_reach(module)
            offers = offering(module)
            if reason is None and offers:
                _enable(offers, module, name, hands)
                return
            chosen = [] if reason else repeated_blocks(module)
            if not chosen:
                hands.unfit(f"{name}: {reason or 'no repeated blocks hold most of its layers'}")
                return
            for block in chosen:
                blocks.add(block)
                cls = next(base for base in type(block).__mro__ if "forward" in vars(base))
                if cls not in held:
                    held.add(cls)
                    hands.seams.around(cls, "forward", handler)
            kinds = ", ".join(sorted({type(block).__qualname__ for block in chosen}))
            hands.applied(f"{len(chosen)} blocks ({kinds}) of {name}")

        hands.seams.root_found(found)

    def explain(self, error: BaseException, line: str) -> str | None:
        if type(error).__name__ == "CheckpointError":
            return "a block did something else when it was computed again in backward"
        return None

    def edit(self, value: Any, line: str) -> Edit:
        return Edit(
            "call each repeated block by torch.utils.checkpoint.checkpoint(block, x, "
            "use_reentrant=False); models of transformers: model.gradient_checkpointing_enable()"
        )


def _out_of_reach(module: Any) -> str | None:
    """Why nothing inside a model can be taken hold of."""
    import torch

    if is_compiled(module):
        return "the program compiles it, and blocks inside compiled code are out of reach"
    if any(isinstance(part, torch.jit.ScriptModule) for part in module.modules()):
        return "it is a TorchScript module"
    return None


def _enable(models: list[Any], root: Any, name: str, hands: Hands) -> None:
    """Models of transformers know best how: they leave their caches out."""
    for model in models:
        if getattr(model, "is_gradient_checkpointing", False):
            hands.unfit(f"{name}: its gradient checkpointing is on already")
            continue
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        part = "" if model is root else f"{type(model).__qualname__} in "
        hands.applied(f"the layers of {part}{name}")


def _checkpointed(blocks: WeakSet[Any], hands: Hands) -> Any:
    """The handler around `forward` of classes that blocks are of."""
    import torch
    from torch.utils.checkpoint import checkpoint

    buffers = Buffers()
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
