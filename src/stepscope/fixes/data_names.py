"""What is known of libraries that datasets are made of: what draws, what adds up, what is safe."""

import re
import sys
from typing import Any, Final


def words(text: str) -> frozenset[str]:
    """A set of words."""
    return frozenset(text.split())


RANDOM_MODULES: Final = frozenset(
    {
        "random",
        "secrets",
        "numpy.random",
        "torch.random",
        "torch.distributions",
        "torch.cuda.random",
    }
)
RANDOM_TYPES: Final = frozenset(
    {
        ("random", "Random"),
        ("random", "SystemRandom"),
        ("torch", "Generator"),
        ("torch._C", "Generator"),
        ("numpy.random.mtrand", "RandomState"),
        ("numpy.random._generator", "Generator"),
    }
)
_RANDOM_IN_TORCH: Final = re.compile(
    r"rand(n|int|perm)?(_like)?$|randint_like$|normal$|bernoulli|multinomial$|poisson$|binomial$"
    r"|.*dropout|.*Dropout|rrelu|RReLU|(manual_|initial_|)seed|fork_rng|[gs]et_rng_state"
    r"|gumbel_softmax|fractional_max_pool"
)
RANDOM_METHODS: Final = words(
    "random random_ rand randn randint integers normal normal_ uniform uniform_ bernoulli"
    " bernoulli_ multinomial exponential_ geometric_ cauchy_ log_normal_ choice choices"
    " shuffle permutation standard_normal dropout"
)
SUMS: Final = words(
    "sum mean std var norm matmul mm bmm einsum softmax log_softmax logsumexp cumsum dot"
    " cov conv1d conv2d conv3d linear"
)
"""Reductions of tensors: how they round depends on the number of threads."""
_TRUSTED: Final = (
    words(
        "torch numpy PIL cv2 pandas pyarrow h5py scipy lmdb sklearn skimage imageio soundfile tqdm"
        " yaml tokenizers sentencepiece regex torchaudio"
    )
    | sys.stdlib_module_names
) - {"random", "secrets"}
_TRUSTED_PARTS: Final = (
    "torchvision.transforms.functional",
    "torchvision.transforms._functional",
    "torchvision.transforms.v2.functional",
    "torchvision.transforms._presets",
    "torchvision.io",
    "torchvision.tv_tensors",
    "torchvision.ops",
    "torchvision.utils",
    "transformers.tokenization",
    "transformers.image_",
    "transformers.utils",
)
_TRUSTED_THINGS: Final = frozenset(
    {
        "default_data_collator",
        "DefaultDataCollator",
        "DataCollatorWithPadding",
        "DataCollatorForSeq2Seq",
        "DataCollatorForTokenClassification",
        "DataCollatorWithFlattening",
        "RemoveColumnsCollator",
    }
)
HANDLES: Final = {
    "h5py": "an open HDF5 file",
    "sqlite3": "an open SQLite connection",
    "lmdb": "an open LMDB environment",
    "zipfile": "an open zip file",
    "tarfile": "an open tar file",
    "netCDF4": "an open netCDF file",
}
"""Libraries whose objects are something open."""


def draws_in_torch(name: str) -> bool:
    """Whether a function or class of torch with this name draws or sets random numbers."""
    return _RANDOM_IN_TORCH.match(name) is not None


def module_of(thing: Any) -> str:
    """The dotted module a class or function says it is from."""
    module = getattr(thing, "__module__", None)
    return module if isinstance(module, str) else ""


def trusted(thing: Any) -> bool:
    """Whether a class or function is of a library that draws only where its names say so."""
    module = module_of(thing)
    if module.split(".")[0] in _TRUSTED or module.startswith(_TRUSTED_PARTS):
        return True
    named = getattr(thing, "__name__", "") in _TRUSTED_THINGS
    return named and module.startswith("transformers.")
