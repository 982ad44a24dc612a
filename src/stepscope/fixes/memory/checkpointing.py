"""Keep only the inputs of repeated blocks and recompute the rest in backward."""

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

from stepscope.analyze.replay.known import Changes, KnownProgram
from stepscope.fixes.base import Fix, FixContext, FixKind, LiveProgram, SourceEdit, refused_by_all
from stepscope.fixes.inspect.dataset_code import is_trusted
from stepscope.fixes.inspect.dataset_traits import DatasetTraits, dataset_traits
from stepscope.fixes.inspect.models import is_checkpointed
from stepscope.fixes.launching.compile import is_compiled
from stepscope.fixes.lazy import changes, torch
from stepscope.fixes.memory.block_state import BlockInputs, BlockState, ChangingBuffers
from stepscope.record.fix import (
    MODEL,
    PROGRAM_COMPILES,
    TORCHSCRIPT,
    Applied,
    Broke,
    NotApplied,
    Reason,
    Target,
    Trait,
    TraitKind,
)

BLOCKS = Target("blocks", "{count} blocks ({detail}) of {object}, called{at}")
OWN_LAYERS = Target("own_layers", "the layers of {detail}{object}, called{at}")
NO_REPEATED_BLOCKS = Reason(
    "no_repeated_blocks", "{subject}: no repeated blocks hold most of its layers"
)
CHECKPOINTING_ALREADY = Reason(
    "checkpointing_already", "{subject}: its gradient checkpointing is already on"
)
BLOCKS_HAVE_EFFECTS = Reason(
    "blocks_have_effects",
    "{subject}: a block that runs twice does more than one run: {trait}",
)
CHANGED_BEFORE_BACKWARD = Reason(
    "changed_before_backward",
    "{subject}: what a block was computed from was changed before backward: {trait}",
)
INPUT_CHANGED = Reason(
    "changed_before_backward", "an input of a block was changed in place before backward"
)
RECOMPUTED_DIFFERENTLY = Reason(
    "recomputed_differently", "a block computed something else when recomputed in backward"
)


def _repeated_blocks(root: Any) -> list[Any]:
    """Outermost compound modules that repeat in a row with others of their class. Empty if they
    hold less than half of the model's layers."""
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
    """Outermost models that can checkpoint their own layers, like those of transformers."""
    supported = getattr(root, "supports_gradient_checkpointing", False)
    if supported and hasattr(root, "gradient_checkpointing_enable"):
        return [root]
    return [model for child in root.children() for model in _self_checkpointing(child)]


def _layers(module: Any) -> int:
    """The leaf modules inside a module."""
    return sum(next(part.children(), None) is None for part in module.modules())


@dataclass(frozen=True, slots=True)
class _Block:
    """A block that is recomputed."""

    record: Applied
    """The record of its model."""
    traits: DatasetTraits


def _effect(block: Any, seen: DatasetTraits) -> Trait | None:
    """An effect of a block that cannot be undone if it runs twice, or None."""
    if found := seen.keeps or seen.logs or seen.effects or seen.given or seen.handle:
        return found
    for part in block.modules():
        hooks = [*part._forward_hooks.values(), *part._forward_pre_hooks.values()]
        for hook in [] if part is block else hooks:
            if not is_trusted(hook if hasattr(hook, "__module__") else type(hook)):
                code = getattr(hook, "__qualname__", type(hook).__qualname__)
                return Trait(TraitKind.HOOKED, code)
    return None


class _Blocks:
    """What of a model can be recomputed."""

    def __init__(self, module: Any) -> None:
        self.offers: list[Any] = []
        """Models that know how to do it themselves."""
        self.chosen: list[Any] = []
        self.traits: dict[type, DatasetTraits] = {}
        """Of the classes of those chosen."""
        self.refused = self._refused(module)

    def _refused(self, module: Any) -> NotApplied | None:
        name = type(module).__qualname__
        if is_compiled(module):
            return NotApplied(PROGRAM_COMPILES, MODEL, name)
        if any(isinstance(part, torch.jit.ScriptModule) for part in module.modules()):
            return NotApplied(TORCHSCRIPT, MODEL, name)
        self.offers = _self_checkpointing(module)
        if self.offers:
            on = all(map(is_checkpointed, self.offers))
            return NotApplied(CHECKPOINTING_ALREADY, MODEL, name) if on else None
        self.chosen = _repeated_blocks(module)
        if not self.chosen:
            return NotApplied(NO_REPEATED_BLOCKS, MODEL, name)
        firsts = {type(block): block for block in reversed(self.chosen)}
        self.traits = {
            cls: dataset_traits(block, put_back=torch.nn.Module) for cls, block in firsts.items()
        }
        effects = (_effect(block, self.traits[type(block)]) for block in self.chosen)
        trait = next(filter(None, effects), None)
        return None if trait is None else NotApplied(BLOCKS_HAVE_EFFECTS, MODEL, name, trait=trait)


class Checkpointing(Fix):
    """Random numbers are redrawn identically from every visible generator; buffers and attributes
    are restored. Models whose blocks have other effects are left alone. Blocks inside compiled code
    cannot be wrapped, so it does not go with `compile`."""

    name = "checkpointing"
    group = "memory"
    title = "recompute activations of repeated blocks in backward"
    edited_by_call = True
    kind = FixKind.EXACT
    effort = "one line per kind of block"
    bad_with = ("compile",)
    missing = "no model was called"
    failures = {"has been modified by an inplace operation": INPUT_CHANGED}  # noqa: RUF012
    saves_memory = True

    def predict(self, value: str | None, known: KnownProgram) -> Changes:
        """Backward repeats the forward, which costs time. None if phases are unknown."""
        phases = known.show.phases_ms if known.show else {}
        forward, backward = phases.get("forward", 0.0), phases.get("backward", 0.0)
        return [changes.scale_phase("backward", 1 + forward / backward)] if backward else None

    def check(self, live: LiveProgram) -> NotApplied | None:
        return refused_by_all(_Blocks(one.module).refused for one in live.models)

    def install(self, value: Any, context: FixContext) -> None:
        blocks: WeakKeyDictionary[Any, _Block] = WeakKeyDictionary()
        buffers = ChangingBuffers()
        wrapped: set[type] = set()

        def left_alone(block: Any, known: _Block, reason: Reason, trait: Trait) -> None:
            blocks.pop(block, None)
            one = known.record
            refused = NotApplied(reason, MODEL, one.object, one.place, trait=trait)
            context.not_applied(refused)

        def forward(call: Any, block: Any, *args: Any, **kwargs: Any) -> Any:
            known = blocks.get(block)
            if known is None or not block.training or not torch.is_grad_enabled():
                return call(block, *args, **kwargs)
            first = not buffers.knows(block)
            state = BlockState(block, known.traits)
            inputs = BlockInputs((args, kwargs), keep=first)
            before, versions = buffers.before(block), buffers.versions(block)
            runs = 0

            def run(*args: Any, **kwargs: Any) -> Any:
                nonlocal runs
                runs += 1
                if runs == 1:
                    return call(block, *args, **kwargs)
                changed = inputs.changed() or state.changed()
                if changed is not None and block in blocks:
                    context.applied(known.record, FixKind.NUMERIC)
                    left_alone(block, known, CHANGED_BEFORE_BACKWARD, changed)
                args, kwargs = inputs.originals((args, kwargs))
                with state.again(), buffers.again(block, before):
                    return context.seams.unseen(call, block, *args, **kwargs)

            checkpoint = torch.utils.checkpoint.checkpoint
            result = checkpoint(run, *args, use_reentrant=False, **kwargs)
            buffers.learn(block, versions)
            if inputs.changed_in_place():
                if not first:
                    context.applied(known.record, FixKind.NUMERIC)
                trait = Trait(TraitKind.CHANGES, f"{type(block).__qualname__}.forward")
                left_alone(block, known, BLOCKS_HAVE_EFFECTS, trait)
            return result

        def found(module: Any) -> None:
            name, place = type(module).__qualname__, context.place()
            blockwise = _Blocks(module)
            if blockwise.refused is not None:
                context.not_applied(replace(blockwise.refused, place=place))
            if blockwise.offers:
                _enable(blockwise.offers, module, context)
            if blockwise.refused is not None or blockwise.offers:
                return
            chosen, seen = blockwise.chosen, blockwise.traits
            kinds = ", ".join(sorted({type(block).__qualname__ for block in chosen}))
            record = Applied(BLOCKS, name, place, count=len(chosen), detail=kinds)
            for block in chosen:
                blocks[block] = _Block(record, seen[type(block)])
                cls = next(base for base in type(block).__mro__ if "forward" in vars(base))
                if cls not in wrapped:
                    wrapped.add(cls)
                    context.seams.around(cls, "forward", forward)
            context.applied(record)

        context.root_found(found)

    def explain(self, error: BaseException, line: str) -> Broke | None:
        differs = type(error).__name__ == "CheckpointError"
        return Broke(RECOMPUTED_DIFFERENTLY) if differs else super().explain(error, line)

    def edit(self, value: Any, line: str) -> SourceEdit:
        return SourceEdit(
            "call each repeated block by torch.utils.checkpoint.checkpoint(block, x, "
            "use_reentrant=False); models of transformers: model.gradient_checkpointing_enable()"
        )


def _enable(models: list[Any], root: Any, context: FixContext) -> None:
    """Models of transformers do it themselves: they leave their caches out."""
    name, place = type(root).__qualname__, context.place()
    for model in models:
        if is_checkpointed(model):
            continue
        enable = getattr(model, "activation_checkpointing_enable", None)  # from 5.23 on
        (enable or model.gradient_checkpointing_enable)({"use_reentrant": False})
        part = "" if model is root else f"{type(model).__qualname__} in "
        context.applied(Applied(OWN_LAYERS, name, place, detail=part))


FIX = Checkpointing()
