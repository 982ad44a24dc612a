"""Whether a loader's indices may be read ahead without other random draws."""

from typing import Any, Final

from stepscope.fixes.data_look import look

_AT_ONCE: Final = frozenset(
    {
        "SequentialSampler",
        "RandomSampler",
        "SubsetRandomSampler",
        "WeightedRandomSampler",
        "DistributedSampler",
        "SeedableRandomSampler",
        "_InfiniteConstantSampler",
    }
)
"""They draw from the program's generator before their first index only, if at all."""
_AROUND: Final = {"BatchSampler": "sampler", "BatchSamplerShard": "batch_sampler"}
_LIBRARIES: Final = ("torch.", "accelerate.")


def innermost(sampler: Any) -> Any:
    """The sampler that chooses single indices, inside those that put them into batches."""
    while (inner := _AROUND.get(type(sampler).__name__)) and _from_library(sampler):
        sampler = getattr(sampler, inner)
    return sampler


def draws_as_it_goes(sampler: Any) -> str | None:
    """Why reading a sampler ahead may change random draws; None where it cannot."""
    import torch

    sampler = innermost(sampler)
    if _from_library(sampler) and type(sampler).__name__ in _AT_ONCE:
        shared = getattr(sampler, "generator", None) is torch.default_generator
        return "the sampler draws from the program's own generator" if shared else None
    reason = look(sampler)
    if reason.draws or reason.unknown:
        return f"the sampler may draw as it goes: {reason.draws or reason.unknown}"
    return None


def has_generator(sampler: Any) -> bool:
    """Whether it draws from a generator that goes on from epoch to epoch."""
    sampler = innermost(sampler)
    named = type(sampler).__name__
    return named != "SeedableRandomSampler" and getattr(sampler, "generator", None) is not None


def _from_library(sampler: Any) -> bool:
    return type(sampler).__module__.startswith(_LIBRARIES)
