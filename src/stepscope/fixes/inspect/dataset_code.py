"""What a dataset's code refers to, read from its bytecode without running it, and facts about the
libraries it uses: what draws random numbers, what sums, what is safe."""

import dis
import inspect
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CellType, CodeType, ModuleType
from typing import Any, Final


def word_set(text: str) -> frozenset[str]:
    return frozenset(text.split())


RANDOM_MODULES: Final = word_set(
    "random secrets numpy.random torch.random torch.distributions torch.cuda.random"
)
RANDOM_TYPES: Final = word_set(
    "random.Random random.SystemRandom torch.Generator torch._C.Generator"
    " numpy.random.mtrand.RandomState numpy.random._generator.Generator"
)
_RANDOM_IN_TORCH: Final = re.compile(
    r"rand(n|int|perm)?(_like)?$|randint_like$|normal$|bernoulli|multinomial$|poisson$|binomial$"
    r"|.*dropout|.*Dropout|rrelu|RReLU|(manual_|initial_|)seed|fork_rng|[gs]et_rng_state"
    r"|gumbel_softmax|fractional_max_pool"
)
RANDOM_METHODS: Final = word_set(
    "random random_ rand randn randint integers normal normal_ uniform uniform_ bernoulli"
    " bernoulli_ multinomial exponential_ geometric_ cauchy_ log_normal_ choice choices"
    " shuffle permutation standard_normal dropout"
)
SUMS: Final = word_set(
    "sum mean std var norm matmul mm bmm einsum softmax log_softmax logsumexp cumsum dot"
    " cov conv1d conv2d conv3d linear"
)
"""Reductions of tensors: how they round depends on the number of threads."""
_TRUSTED: Final = (
    word_set(
        "torch numpy PIL cv2 pandas pyarrow h5py scipy lmdb sklearn skimage imageio soundfile tqdm"
        " yaml tokenizers sentencepiece regex torchaudio"
    )
    | sys.stdlib_module_names
) - {"random", "secrets"}
_TRUSTED_PARTS: Final = tuple(
    word_set(
        "torchvision.transforms.functional torchvision.transforms._functional"
        " torchvision.transforms.v2.functional torchvision.transforms._presets torchvision.io"
        " torchvision.tv_tensors torchvision.ops torchvision.utils transformers.tokenization"
        " transformers.image_ transformers.utils"
    )
)
_TRUSTED_THINGS: Final = word_set(
    "default_data_collator DefaultDataCollator DataCollatorWithPadding DataCollatorForSeq2Seq"
    " DataCollatorForTokenClassification DataCollatorWithFlattening RemoveColumnsCollator"
)
HANDLES: Final = word_set("h5py sqlite3 lmdb zipfile tarfile netCDF4")
"""Libraries whose objects are open files or connections."""


def draws_in_torch(name: str) -> bool:
    """Whether a function or class of torch with this name draws or sets random numbers."""
    return _RANDOM_IN_TORCH.match(name) is not None


def module_of(thing: Any) -> str:
    """The dotted module of a class or function."""
    module = getattr(thing, "__module__", None)
    return module if isinstance(module, str) else ""


def is_trusted(thing: Any) -> bool:
    """Whether a class or function belongs to a library that draws only where names say so."""
    module = module_of(thing)
    if module.split(".")[0] in _TRUSTED or module.startswith(_TRUSTED_PARTS):
        return True
    named = getattr(thing, "__name__", "") in _TRUSTED_THINGS
    return named and module.startswith("transformers.")


ABSENT: Final = object()
_GLOBALS: Final = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF")


@dataclass(slots=True)
class CodeReferences:
    """The outside things a code object names."""

    chains: list[tuple[list[Any], str, int]] = field(default_factory=list)
    """Objects along a dotted name that starts at a global, that name as written, and its line."""
    names: dict[str, int] = field(default_factory=dict)
    """Attributes of things known only at run time, with a line."""
    calls: set[str] = field(default_factory=set)
    """Those of them that are called directly."""
    products: int = 0
    """The line of a matrix product written as `@`; 0: none."""
    strings: set[str] = field(default_factory=set)
    inner: list[CodeType] = field(default_factory=list)
    """Functions written inside it."""


def read_code(code: CodeType, scope: Callable[[str], Any]) -> CodeReferences:
    """Read a code object; `scope` gives a global or enclosing variable, or ABSENT."""
    found = CodeReferences()
    chain: list[Any] = []
    text, line = "", code.co_firstlineno

    def flush() -> None:
        if chain:
            found.chains.append((list(chain), text, line))
        chain.clear()

    for step in dis.get_instructions(code):
        op, name = step.opname, step.argval
        if op in ("CACHE", "PUSH_NULL", "COPY"):
            continue
        if step.positions is not None and step.positions.lineno:
            line = step.positions.lineno
        if op in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"):
            found.names.setdefault(name, line)
            if op == "LOAD_METHOD" or "self" in step.argrepr.removesuffix(name):
                found.calls.add(name)
            text += f".{name}"
            reached = member(chain[-1], name) if chain else ABSENT
            if reached is ABSENT:
                flush()
            else:
                chain.append(reached)
                found.names.pop(name, None)
            continue
        flush()
        if op in _GLOBALS and name != "__class__":  # which stands behind every `super()`
            text = name
            value = scope(name)
            if value is not ABSENT or op == "LOAD_GLOBAL":
                chain.append(value)
        elif op.startswith("LOAD_FAST"):
            text = name[-1] if isinstance(name, tuple) else str(name)
        elif op == "IMPORT_NAME":
            text = name
            chain.append(sys.modules.get(name, ABSENT))
        elif op == "IMPORT_FROM" and found.chains:
            module = found.chains[-1][0][0]
            found.chains.append(([module, member(module, name)], name, line))
        elif op == "BINARY_OP" and "@" in step.argrepr:
            found.products = line
        elif op == "LOAD_CONST" and isinstance(name, str):
            found.strings.add(name)
        elif isinstance(name, CodeType):
            found.inner.append(name)
    flush()
    return found


def member(owner: Any, name: str) -> Any:
    """A module's or class's member, without running code; else ABSENT."""
    if isinstance(owner, ModuleType):
        value = vars(owner).get(name, ABSENT)
        return sys.modules.get(f"{owner.__name__}.{name}", ABSENT) if value is ABSENT else value
    if isinstance(owner, type):
        return inspect.getattr_static(owner, name, ABSENT)
    return ABSENT


class Scope:
    """Where a function finds its globals and the variables it closes over."""

    def __init__(self, function: Any) -> None:
        cells = function.__closure__ or ()
        self._cells = dict(zip(function.__code__.co_freevars, cells, strict=False))
        self.globals: dict[str, Any] = function.__globals__
        builtins = self.globals.get("__builtins__", {})
        self._builtins = vars(builtins) if isinstance(builtins, ModuleType) else builtins

    def __call__(self, name: str) -> Any:
        """A name's current value, or ABSENT."""
        holder = self.holder(name)
        return self._builtins.get(name, ABSENT) if holder is None else held_at(holder, name)

    def holder(self, name: str) -> Any:
        """The cell or dictionary that holds a name; None for builtins and unknown names."""
        if name in self._cells:
            return self._cells[name]
        return self.globals if name in self.globals else None


def held_at(holder: Any, name: str) -> Any:
    """The current value of a name in a cell, dictionary, module, class or object."""
    if isinstance(holder, CellType):
        try:
            return holder.cell_contents
        except ValueError:  # not assigned yet
            return ABSENT
    if isinstance(holder, dict):
        return holder.get(name, ABSENT)
    if isinstance(holder, (ModuleType, type)):
        return member(holder, name)
    return inspect.getattr_static(holder, name, ABSENT)
