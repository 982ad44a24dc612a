"""What the scout run says about each fix: whether it has anything to do here, and which values to
try.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from stepscope.fixes.base import Fix

Document = Mapping[str, Any]
_LITTLE: Final = 0.01  # of the step waits for data: workers could not take more from it
_WORTH_RECYCLING: Final = 1 << 18  # bytes of a batch
_HALVES: Final = {"float16", "bfloat16"}
_DESCRIBED: Final = 4  # models at most: there may be more


def reason_not_to_try(fix: Fix, scout: Document) -> str | None:
    """Why a fix cannot help this program; None where it may. `scout` is a run's document."""
    if fix.needs == "cuda" and scout_device(scout) != "cuda":
        return "needs a CUDA device"
    if fix.name in _OF_LOADERS and not scout_loaders(scout):
        return "no DataLoader is used here"
    if fix.name in _OF_OPTIMIZERS and not _scout_config(scout).get("optimizers"):
        return "no optimizer steps here"
    reason = _REASONS.get(fix.name)
    return reason(scout) if reason is not None else None


def scout_device(scout: Document) -> str:
    """cuda or cpu."""
    on_gpu = scout.get("gpu") or (scout.get("run") or {}).get("device") == "cuda"
    return "cuda" if on_gpu else "cpu"


def scout_loaders(scout: Document) -> list[Document]:
    """The loaders the program made."""
    return list(scout.get("loaders") or ())


def _scout_config(scout: Document) -> Document:
    """What models, optimizers and switches were found set to."""
    return scout.get("config") or {}


def data_wait_share(scout: Document) -> float | None:
    """The share of a step in which it waits for data; None: not known."""
    step_ms = (scout.get("steps") or {}).get("mean_ms")
    waits = (scout.get("phases_ms") or {}).get("data_wait")
    return None if not step_ms or waits is None else float(waits / step_ms)


def _workers(scout: Document) -> str | None:
    share = data_wait_share(scout)
    if any(one.get("num_workers") for one in scout_loaders(scout)) or share is None:
        return None
    return f"steps hardly wait for data ({share:.1%} of the time)" if share < _LITTLE else None


def _cache(scout: Document) -> str | None:
    if all(one.get("num_workers") for one in scout_loaders(scout)):
        return "loaders have workers, which do not keep samples"
    return _workers(scout)


def _persistent(scout: Document) -> str | None:
    kept = all(one.get("persistent_workers") for one in scout_loaders(scout))
    return "workers are kept already" if kept else None


def _recycle(scout: Document) -> str | None:
    size = (scout.get("steps") or {}).get("batch_bytes")
    if size is None or size >= _WORTH_RECYCLING:
        return None
    return f"batches are small ({size / 1024:.1f} KiB)"


def _drop_last(scout: Document) -> str | None:
    dropped = all(one.get("drop_last") for one in scout_loaders(scout))
    return "short last batches are dropped already" if dropped else None


def _waits(word: str, reason: str) -> Callable[[Document], str | None]:
    def seen(scout: Document) -> str | None:
        return None if any(word == one["what"] for one in scout.get("syncs") or ()) else reason

    return seen


def _tf32(scout: Document) -> str | None:
    switches = _scout_config(scout).get("switches") or {}
    on = switches.get("tf32_matmul") in ("high", "medium") and switches.get("tf32_cudnn")
    return "TF32 is on already" if on else None


def _cudnn_benchmark(scout: Document) -> str | None:
    if not _convolved(scout):
        return "no model has convolutions"
    switches = _scout_config(scout).get("switches") or {}
    if switches.get("cudnn_benchmark"):
        return "cuDNN measures its algorithms already"
    fixed = switches.get("deterministic") or switches.get("cudnn_deterministic")
    return "the program asks for deterministic algorithms" if fixed else None


def _amp(scout: Document) -> str | None:
    known = _scout_config(scout)
    if known.get("autocast"):
        return f"the program uses autocast already ({known['autocast']})"
    dtypes = {dtype for model in known.get("models") or () for dtype in model["dtypes"]}
    return "the model is in half precision already" if dtypes and dtypes <= _HALVES else None


def _models(scout: Document) -> Sequence[Document]:
    """Those that are described; one of which nothing is known where there may be others."""
    models: Sequence[Document] = _scout_config(scout).get("models") or ()
    return models if 0 < len(models) < _DESCRIBED else ({},)


def _convolved(scout: Document) -> set[int]:
    """Over how many dimensions the models convolve; of any number where that is not known."""
    return {dims for model in _models(scout) for dims in model.get("convolved_dims", (1, 2, 3))}


def _sdpa(scout: Document) -> str | None:
    """A finding may know of attention outside of layers that are called so."""
    found = (*scout.get("findings", ()), *scout.get("minor", ()))
    if any((one.get("fix") or {}).get("name") == "sdpa" for one in found):
        return None
    attends = any(model.get("attends", True) for model in _models(scout))
    return None if attends else "no model has layers of attention"


def _channels_last(scout: Document) -> str | None:
    if not _convolved(scout) & {2, 3}:
        return "no model has 2d or 3d convolutions"
    models = _scout_config(scout).get("models") or ()
    so = models and all(model["memory_format"] == "channels_last" for model in models)
    return "the model is channels-last already" if so else None


def _compile(scout: Document) -> str | None:
    models = _scout_config(scout).get("models") or ()
    return "the program compiles it itself" if any(one["compiled"] for one in models) else None


def _cuda_graph(scout: Document) -> str | None:
    if (scout.get("steps") or {}).get("what") not in (None, "training"):
        return "nothing is trained here"
    return _compile(scout)


def _fused_optimizer(scout: Document) -> str | None:
    fused = all(one.get("fused") for one in _scout_config(scout)["optimizers"])
    return "the optimizer is fused already" if fused else None


def _foreach(scout: Document) -> str | None:
    on_gpu = scout_device(scout) == "cuda"
    for one in _scout_config(scout)["optimizers"]:
        given = one.get("foreach")
        if not one.get("fused") and not given and not (on_gpu and given is None):
            return None
    return "the optimizer updates many parameters at once already"


_OF_LOADERS: Final = (
    "workers", "persistent", "pin", "prefetch", "recycle", "cache", "batch", "drop_last",
)  # fmt: skip
_OF_OPTIMIZERS: Final = ("foreach", "fused_optimizer", "accumulate")
_REASONS: Final[Mapping[str, Callable[[Document], str | None]]] = {
    "workers": _workers,
    "cache": _cache,
    "persistent": _persistent,
    "recycle": _recycle,
    "drop_last": _drop_last,
    "nosync": _waits("synchronize", "the program never calls torch.cuda.synchronize"),
    "lazyitem": _waits("item", "nothing reads a CUDA scalar with .item()"),
    "tf32": _tf32,
    "cudnn_benchmark": _cudnn_benchmark,
    "amp": _amp,
    "channels_last": _channels_last,
    "sdpa": _sdpa,
    "compile": _compile,
    "cuda_graph": _cuda_graph,
    "fused_optimizer": _fused_optimizer,
    "foreach": _foreach,
}


_USUAL_MOST: Final = 12  # workers to begin with
_BF16_SINCE: Final = 8.0  # compute capability
_MODES: Final = ("default", "reduce-overhead", "max-autotune")


def first_values(fix: Fix, scout: Document, proposed: str | None) -> list[str | None]:
    """What to try first, the likelier first; None stands for no value. Empty: nothing to try.

    `proposed` is what a finding says.
    """
    if fix.name == "workers":
        return _first_workers(scout, proposed)
    if proposed is not None:
        return [proposed]
    if fix.name == "batch":
        size = batch_size(scout)
        return [] if size is None else [str(2 * size)]
    if fix.name == "amp":
        return ["fp16" if _old_gpu(scout) else "bf16"]
    if fix.name == "compile":
        return ["reduce-overhead", "default"] if scout_device(scout) == "cuda" else ["default"]
    if fix.name in ("threads", "cache"):
        return [None]  # as many as there are cores; half of what is free
    return [fix.suggested[0] if fix.suggested else None]


def other_values(name: str, value: str, scout: Document) -> list[str]:
    """What to try in place of a value that helped, in order; each doubles or halves numbers."""
    if name == "compile" and scout_device(scout) == "cuda":
        mode, comma, dynamic = value.partition(",")
        return [f"{other}{comma}{dynamic}" for other in _MODES if other != mode]
    if name not in ("workers", "threads", "batch") or not value.isdecimal():
        return []
    now = int(value)
    most = {"workers": most_workers(scout), "threads": usable_cores(scout)}.get(name, 1 << 20)
    more, less = min(2 * now, most), now // 2
    return [str(one) for one in (more, less) if one >= 1 and (one >= 1.2 * now or one < now)]


def most_workers(scout: Document) -> int:
    """As many as there are cores; four times that where samples wait rather than compute."""
    found = [*scout.get("findings", ()), *scout.get("minor", ())]
    waiting = any(one["id"] == "data.slow_storage" for one in found)
    return usable_cores(scout) * (4 if waiting else 1)


def usable_cores(scout: Document) -> int:
    """Usable cores; 4 where that is not known."""
    cpu = (_scout_config(scout).get("machine") or {}).get("cpu") or {}
    return max(1, int(cpu.get("usable_cores") or 4))


def batch_size(scout: Document) -> int | None:
    """Of the first loader that forms batches; None where there is none."""
    sizes = [one.get("batch_size") for one in scout_loaders(scout)]
    return next((int(size) for size in sizes if size), None)


def _first_workers(scout: Document, proposed: str | None) -> list[str | None]:
    """One core is left for the training loop; twice as many as there are, where there are some.

    A finding names the fewest that keep up with the step as it is. Other fixes shorten that: beside
    a GPU, whose programs leave cores idle, no fewer than usual are begun with, unless the finding
    is that there are too many.
    """
    usual = max(1, min(_USUAL_MOST, usable_cores(scout) - 1))
    have = max((int(one.get("num_workers") or 0) for one in scout_loaders(scout)), default=0)
    if proposed is not None:
        more = scout_device(scout) == "cuda" and int(proposed) > have
        return [str(max(usual, int(proposed))) if more else proposed]
    count = usual if have < usual else min(2 * have, most_workers(scout))
    return [str(count)] if count > have else []


def _old_gpu(scout: Document) -> bool:
    gpus = (_scout_config(scout).get("machine") or {}).get("gpus") or ()
    versions = [gpu.get("compute_capability") for gpu in gpus]
    known = [float(version) for version in versions if version]
    return scout_device(scout) == "cuda" and bool(known) and max(known) < _BF16_SINCE
