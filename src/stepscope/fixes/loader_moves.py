"""Which tensors of a loader's batches the program moves, and the copies made of them early."""

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final
from weakref import ref

from stepscope.fixes.data_moves import Move, Path, aimed, storage, tensors, version

_REMEMBERED: Final = 4  # batches; a framework may fetch one or two before it moves the first


@dataclass(slots=True)
class Plan:
    """What is known of one loader's batches."""

    moves: dict[Path, Move] = field(default_factory=dict)
    """The tensors the program moves, by the way to them in a batch."""
    first: Any = None
    """The first batch, until the second has come."""
    apart: bool = False
    """Whether two batches had memory of their own: only then can one be fetched ahead."""
    over: bool = False
    """Whether fetching ahead was given up."""

    def compare(self, batch: Any) -> bool:
        """Look at one of the first two batches; false if they share memory."""
        if self.first is None:
            self.first = batch
            return True
        before = {storage(tensor) for _, tensor in tensors(self.first)}
        self.apart = all(storage(tensor) not in before for _, tensor in tensors(batch))
        self.first = None
        return self.apart


@dataclass(slots=True)
class Entry:
    """One tensor of a batch the program has, or is about to get."""

    tensor: Any
    """A weak reference."""
    plan: Plan
    path: Path
    move: Move | None = None
    copied: Any = None
    ready: Any = None
    version: int | None = None


class Copied:
    """Watches moves of loader tensors; answers those it has already made."""

    def __init__(self, side: Any) -> None:
        self._side = side
        self._entries: dict[int, Entry] = {}
        self._batches: deque[list[tuple[int, Entry]]] = deque()
        self.answered = 0

    def know(self, batch: Any, plan: Plan) -> None:
        """A batch was fetched; what the program moves of such batches is copied now."""
        added = []
        for path, tensor in tensors(batch):
            entry = Entry(ref(tensor), plan, path)
            move = plan.moves.get(path)
            if move is not None and not tensor.requires_grad and not tensor.is_inference():
                entry.version = version(tensor)
                entry.copied, entry.ready = self._side.copy(tensor, move)
                entry.move = move
            self._entries[id(tensor)] = entry
            added.append((id(tensor), entry))
        self._batches.append(added)
        while len(self._batches) > _REMEMBERED:
            self._forget(self._batches.popleft())

    def move(self, name: str, call: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        """Around `.to` or `.cuda` of any tensor; `name` is which."""
        entry = self._entries.get(id(tensor))
        if entry is None or entry.tensor() is not tensor:
            return call(tensor, *args, **kwargs)
        move = aimed(name, args, kwargs)
        if move is None or not self._side.reaches(move.device):
            return call(tensor, *args, **kwargs)
        copied, entry.copied = entry.copied, None
        same = move == entry.move and not tensor.requires_grad
        if copied is not None and same and version(tensor) == entry.version:
            self.answered += 1
            return self._side.take(copied, entry.ready)
        entry.plan.moves[entry.path] = move
        return call(tensor, *args, **kwargs)

    def read(self, call: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        """Around `.numpy`: what shares a tensor's memory may change it unseen."""
        entry = self._entries.get(id(tensor))
        if entry is not None and entry.tensor() is tensor:
            entry.copied = None
        return call(tensor, *args, **kwargs)

    def _forget(self, batch: list[tuple[int, Entry]]) -> None:
        """A batch is over; a copy nobody asked for is not made again."""
        for key, entry in batch:
            if self._entries.get(key) is entry:  # else a later tensor has got that id
                del self._entries[key]
            if entry.copied is not None:
                entry.copied = None
                entry.plan.moves.pop(entry.path, None)
