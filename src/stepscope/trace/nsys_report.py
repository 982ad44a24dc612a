"""Reports in NVIDIA's own formats, turned into readable ones by NVIDIA's own programs."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from stepscope.trace.nsys_tables import UnreadableReport

_LONGEST_S = 1800.0
_MISSING = (
    "nsys is not installed here: export the report where it is, with "
    "`nsys export --type sqlite FILE`, and analyze the .sqlite"
)


def export_report(path: Path, folder: Path) -> Path:
    """The SQLite export of a `.nsys-rep`, made in the folder. Raises UnreadableReport."""
    if not path.is_file():
        raise UnreadableReport(f"{path}: there is no such file")
    made = folder.resolve() / f"{path.stem}.sqlite"
    arguments = ["export", "--type", "sqlite", "--output", str(made), str(path.resolve())]
    run_tool("nsys", arguments, _MISSING, path)
    if not made.is_file():
        raise UnreadableReport(f"{path}: nsys wrote no SQLite file for it")
    return made


def run_tool(
    program: str, arguments: Sequence[str], missing: str, path: Path, stdout: Path | None = None
) -> None:
    """Run one of NVIDIA's programs on a report, its output kept in `stdout` where given."""
    found = shutil.which(program)
    if found is None:
        raise UnreadableReport(missing)
    try:
        with (stdout or Path("/dev/null")).open("wb") as output:
            done = subprocess.run(
                [found, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.PIPE,
                timeout=_LONGEST_S,
                check=False,
            )
    except subprocess.TimeoutExpired:
        raise UnreadableReport(f"{path}: {program} took longer than {_LONGEST_S:.0f} s") from None
    except OSError as error:
        raise UnreadableReport(f"{path}: {program} could not be run ({error})") from None
    if done.returncode:
        said = done.stderr.decode(errors="replace").split("\n")
        reason = next((line.strip() for line in reversed(said) if line.strip()), "no reason given")
        raise UnreadableReport(
            f"{path}: {program} could not read it (exit code {done.returncode}: {reason[:300]})"
        )
