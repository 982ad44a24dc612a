"""Which of Python's audit events change a file or folder, and which of their arguments names it."""

import os
from dataclasses import dataclass
from typing import Any

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


@dataclass(frozen=True, slots=True)
class Target:
    """A path among an event's arguments."""

    what: str
    """What happens to it: "write", "delete", "rename", "create", "change"."""
    place: int = 0
    relative_to: int | None = None
    """The argument with the descriptor of the folder it starts from."""
    follow: bool = True
    """Whether a link is followed. Folders that are removed must be real, so theirs are, too."""
    needs: str = ""
    """"there", "absent": nothing happens otherwise."""

    def path(self, arguments: tuple[Any, ...]) -> Any:
        """The path, from the working directory; None where there is none to look at."""
        path = arguments[self.place]
        if isinstance(path, int):
            return None  # of a file opened before
        folder = None if self.relative_to is None else arguments[self.relative_to]
        if isinstance(folder, int) and folder >= 0:
            return os.path.join(os.readlink(f"/proc/self/fd/{folder}"), os.fsdecode(path))
        return path


def _change(relative_to: int | None = None) -> tuple[Target, ...]:
    return (Target("change", 0, relative_to, needs="there"),)


EVENTS: dict[str, tuple[Target, ...]] = {
    "os.chmod": _change(2),
    "os.chown": _change(3),
    "os.utime": _change(3),
    "os.setxattr": _change(),
    "os.removexattr": _change(),
    "os.truncate": (Target("write", needs="there"),),
    "os.mkdir": (Target("create", 0, 2, follow=False, needs="absent"),),
    "os.remove": (Target("delete", 0, 1, follow=False, needs="there"),),
    "os.rmdir": (Target("delete", 0, 1, needs="there"),),
    "shutil.rmtree": (Target("delete", 0, 1, needs="there"),),
    "os.rename": (
        Target("rename", 0, 2, follow=False, needs="there"),
        Target("write", 1, 3, follow=False),
    ),
    "os.link": (Target("change", 0, 2, needs="there"), Target("create", 1, 3, follow=False)),
    "os.symlink": (Target("create", 1, 2, follow=False),),
}
