"""Energy of the processor packages, as Linux tells it (RAPL). Often for root only."""

from pathlib import Path
from typing import Final

_ROOT: Final = Path("/sys/class/powercap")


class Rapl:
    """The running total of all packages since it was made; `readable` says if there is any."""

    def __init__(self, root: Path = _ROOT) -> None:
        self._joules = 0.0
        self._last = {
            folder: uj for folder in _packages(root) if (uj := _energy(folder)) is not None
        }
        self.readable = bool(self._last)

    def joules(self) -> float | None:
        """Joules so far; None where no counter can be read. To be asked at least once a minute:

        a counter starts again at zero when it is full.
        """
        for folder, before in self._last.items():
            now = _energy(folder)
            if now is None:
                self.readable = False
                break
            full = _number(folder / "max_energy_range_uj") if now < before else None
            self._joules += (now - before + (full or 0)) / 1e6 if now >= before or full else 0.0
            self._last[folder] = now
        return self._joules if self.readable else None


def _packages(root: Path) -> list[Path]:
    """The packages; what is within them (cores, memory) would count twice."""
    return sorted(root.glob("intel-rapl:[0-9]")) + sorted(root.glob("intel-rapl:[0-9][0-9]"))


def _energy(folder: Path) -> int | None:
    return _number(folder / "energy_uj")


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
