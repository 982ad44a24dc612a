"""What a dataset's code refers to, read from its bytecode without running it, and what is known of
the libraries it uses: what draws random numbers, what adds up, what is safe."""

import dis
import inspect
import re
import sys
from collections import ChainMap
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType, ModuleType
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
"""Libraries whose objects are something open."""


def draws_in_torch(name: str) -> bool:
    """Whether a function or class of torch with this name draws or sets random numbers."""
    return _RANDOM_IN_TORCH.match(name) is not None


def module_of(thing: Any) -> str:
    """The dotted module a class or function says it is from."""
    module = getattr(thing, "__module__", None)
    return module if isinstance(module, str) else ""


def is_trusted(thing: Any) -> bool:
    """Whether a class or function is of a library that draws only where its names say so."""
    module = module_of(thing)
    if module.split(".")[0] in _TRUSTED or module.startswith(_TRUSTED_PARTS):
        return True
    named = getattr(thing, "__name__", "") in _TRUSTED_THINGS
    return named and module.startswith("transformers.")


ABSENT: Final = object()
_GLOBALS: Final = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF")
_MUTATORS: Final = word_set(
    "append appendleft extend insert pop popleft popitem remove clear rotate sort reverse"
)


@dataclass(slots=True)
class CodeReferences:
    """The outside things a code object names."""

    chains: list[tuple[list[Any], str, int]] = field(default_factory=list)
    """Objects along a dotted name that starts at a global, that name as written, and its line."""
    names: dict[str, int] = field(default_factory=dict)
    """Attributes of things that are only known when it runs, with a line."""
    calls: set[str] = field(default_factory=set)
    """Those of them that are called right there."""
    sets: dict[str, int] = field(default_factory=dict)
    """Attributes and globals it changes, with a line."""
    products: int = 0
    """The line of a matrix product written as `@`; 0: none."""
    strings: set[str] = field(default_factory=set)
    inner: list[CodeType] = field(default_factory=list)
    """Functions written inside it."""


def read_code(code: CodeType, scope: Callable[[str], Any]) -> CodeReferences:
    """Read a code object; `scope` gives a global or enclosing variable, or ABSENT."""
    found = CodeReferences()
    chain: list[Any] = []
    text, own, line = "", False, code.co_firstlineno
    before = ""
    outer = code.co_qualname.rpartition(".")[0]
    method = code.co_argcount and outer and not outer.endswith("<locals>")
    itself = code.co_varnames[0] if method else "self"  # also in functions inside methods

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
            if own and name in _MUTATORS:
                found.sets.setdefault(text, line)
            text += f".{name}"
            reached = member(chain[-1], name) if chain else ABSENT
            if reached is ABSENT:
                flush()
            else:
                chain.append(reached)
                found.names.pop(name, None)
            before = op
            continue
        flush()
        own = False
        if op in _GLOBALS and name != "__class__":  # which stands behind every `super()`
            text = name
            value = scope(name)
            if value is not ABSENT or op == "LOAD_GLOBAL":
                chain.append(value)
        elif op.startswith("LOAD_FAST"):
            text = name[-1] if isinstance(name, tuple) else str(name)
            own = text == itself
        elif op == "IMPORT_NAME":
            text = name
            chain.append(sys.modules.get(name, ABSENT))
        elif op == "IMPORT_FROM" and found.chains:
            module = found.chains[-1][0][0]
            found.chains.append(([module, member(module, name)], name, line))
        elif op == "STORE_ATTR" and not (before.startswith("LOAD_FAST") and text != itself):
            found.sets.setdefault(text if text.endswith(f".{name}") else f"{text}.{name}", line)
        elif op in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            found.sets.setdefault(name, line)
        elif op == "BINARY_OP" and "@" in step.argrepr:
            found.products = line
        elif op == "LOAD_CONST" and isinstance(name, str):
            found.strings.add(name)
        elif isinstance(name, CodeType):
            found.inner.append(name)
        before = op
    flush()
    return found


def member(owner: Any, name: str) -> Any:
    """A module's or class's member, without running anything; ABSENT elsewhere."""
    if isinstance(owner, ModuleType):
        value = vars(owner).get(name, ABSENT)
        return sys.modules.get(f"{owner.__name__}.{name}", ABSENT) if value is ABSENT else value
    if isinstance(owner, type):
        return inspect.getattr_static(owner, name, ABSENT)
    return ABSENT


def scope_of(function: Any) -> Callable[[str], Any]:
    """How a function finds its globals and the variables it closes over."""
    closed = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            closed[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    builtins = function.__globals__.get("__builtins__", {})
    builtins = vars(builtins) if isinstance(builtins, ModuleType) else builtins
    places = ChainMap(closed, function.__globals__, builtins)
    return lambda name: places.get(name, ABSENT)
