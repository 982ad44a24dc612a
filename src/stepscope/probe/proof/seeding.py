"""Seeds imposed on a trial, so that its results can be compared with those of other trials. Key 0
keeps the seeds the program sets; any other key maps each to another, always the same one. What
would be seeded from the clock gets a fixed seed.
"""

import functools
import random
import sys
from collections.abc import Callable
from typing import Any
from zlib import crc32

from stepscope.probe.patches import ImportWatch, Patches


def _seeded_generator_class(base: Any, seed: Callable[[Any], Any]) -> Any:
    """A class to stand for torch's own, whose seeds all pass through `seed`. torch's own
    generators, such as the default ones, still count as instances of it."""

    class Meta(type(base)):  # type: ignore[misc]
        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, base)

        def __subclasscheck__(cls, other: Any) -> bool:
            return issubclass(other, base)

    class Generator(base, metaclass=Meta):  # type: ignore[misc]
        __doc__ = base.__doc__

        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            made = super().__new__(cls, *args, **kwargs)
            base.manual_seed(made, seed(made.initial_seed()))
            return made

        def manual_seed(self, given: Any) -> Any:
            return base.manual_seed(self, seed(given))

        def seed(self) -> int:
            number = int(seed(None))
            base.manual_seed(self, number)
            return number

    Generator.__module__, Generator.__qualname__ = "torch", "Generator"
    return Generator


_WORD = (1 << 64) - 1


def derived_seed(seed: Any, key: int) -> Any:
    """A program's own seed under a key: itself under 0, else 32 bits that depend on both."""
    if key == 0:
        return seed
    try:
        number = int(seed)
    except (TypeError, ValueError):
        number = crc32(repr(seed).encode())  # a text, bytes, several numbers
    mixed = (number + key * 0x9E3779B97F4A7C15) & _WORD
    for multiplier in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB):
        mixed = ((mixed ^ (mixed >> 30)) * multiplier) & _WORD
    return mixed >> 32


class Seeding:
    """The seeding functions of random, numpy and torch, under a key."""

    def __init__(self, key: int) -> None:
        self.key = key
        self._patches = Patches()
        self._unnamed = 0

    def install(self, watch: ImportWatch) -> None:
        """Seed everything now, or once it is imported."""
        self._wrap(random, "seed", "a")
        random.seed(0)
        watch.when_imported("numpy.random", _guarded(self._numpy))
        watch.when_imported("torch", _guarded(self._torch))

    def remove(self) -> None:
        self._patches.restore()

    def seed(self, given: Any) -> Any:
        """What to seed with where the program asked for this; None: where it named none."""
        if given is not None:
            return derived_seed(given, self.key)
        utilities = sys.modules.get("torch.utils.data")
        worker = utilities.get_worker_info() if utilities is not None else None
        if worker is not None:
            return worker.seed % (1 << 32)  # another in each, from the program's own generator
        self._unnamed += 1
        return derived_seed(self._unnamed - 1, self.key)

    def _numpy(self, numpy_random: Any) -> None:
        def is_seed(given: Any) -> bool:  # not another generator
            return given is None or hasattr(given, "__index__") or isinstance(given, list | tuple)

        self._wrap(numpy_random, "seed", "seed")
        self._wrap(numpy_random, "default_rng", "seed", is_seed)
        numpy_random.seed(0)

    def _torch(self, torch: Any) -> None:
        if self.key:  # under 0 torch's own class will do: it has a fixed seed from the start
            seeded = _seeded_generator_class(torch.Generator, self.seed)
            self._patches.set(torch, "Generator", seeded)
        for where in (torch.cuda.random, torch.random):
            for clock, named in (("seed", "manual_seed"), ("seed_all", "manual_seed_all")):
                if hasattr(where, clock):
                    self._fix(where, clock, getattr(where, named))
                    self._wrap(where, named, "seed")
        for owner, where in ((torch.cuda, torch.cuda.random), (torch, torch.random)):
            for name in ("seed", "seed_all", "manual_seed", "manual_seed_all"):
                if hasattr(where, name):
                    self._patches.set(owner, name, getattr(where, name))
        torch.manual_seed(0)

    def _wrap(
        self, owner: Any, name: str, parameter: str, takes: Callable[[Any], bool] = lambda _: True
    ) -> None:
        """Have a function get another seed, its first parameter, where it `takes` what is given."""
        original = getattr(owner, name)

        @functools.wraps(original)
        def seeded(*args: Any, **kwargs: Any) -> Any:
            given = args[0] if args else kwargs.pop(parameter, None)
            seed = self.seed(given) if takes(given) else given
            return original(seed, *args[1:], **kwargs)

        self._patches.set(owner, name, seeded)

    def _fix(self, owner: Any, name: str, seed_by: Callable[[int], Any]) -> None:
        """Have a function that seeds from the clock take an imposed seed, and return it."""

        @functools.wraps(getattr(owner, name))
        def seeded() -> int:
            seed = int(self.seed(None))
            seed_by(seed)
            return seed

        self._patches.set(owner, name, seeded)


def _guarded(take_hold: Callable[[Any], None]) -> Callable[[Any], None]:
    """A fault of our own leaves the import it happened in alone."""

    def call(module: Any) -> None:
        try:
            take_hold(module)
        except Exception as problem:
            text = f"could not seed {module.__name__}: {problem!r}"
            print(f"stepscope: {text}", file=sys.stderr)

    return call
