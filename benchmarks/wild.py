"""Programs nobody here wrote: run bare, observed and with the fixes promised, and judged.

python benchmarks/wild.py CHECKOUTS [--device cpu|cuda] [--programs A,B] [--tune] [--busy N]
python benchmarks/wild.py CHECKOUTS --pack FILE.tar.xz [--device cpu|cuda] [--programs A,B]
python benchmarks/wild.py --table FILE.json

CHECKOUTS holds public repositories as owner+name or owner/name: git directories or work trees; or
it is a file that `--pack` wrote, for machines that have no checkouts.
`wild_programs.toml` names the programs, none of which is part of this repository; their data are
made. Each runs unedited in a copy: twice bare and once observed (exit code, output, files and the
number of steps must agree), then in turn without and with each fix that is promised 5% or more,
and with the whole set of the screen's "apply them now". With `--tune` it is also tuned, and the
patch applied and run. What the results have of the same stepscope is not measured again; a program
that `--minutes` cut short is, after those that were not begun.
"""

import argparse
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from _about import SOURCE, about
from _predictions_measure import Others
from _wild_checkouts import CheckoutError, Program, pack, programs, unpack, unpacked
from _wild_data import make
from _wild_judge import (
    Ran,
    as_document,
    expected_steps,
    kept,
    measured,
    observed_facts,
    promises,
    tuned,
)
from _wild_table import line, table
from busy import neighbours

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
_CUT_S = 40.0
_IGNORED = ("__pycache__", ".stepscope", "events.out.tfevents")
_NO_TIME = "no time was left"


def main() -> None:
    sys.path.insert(0, str(SOURCE))
    options = _arguments()
    if options.table:
        print(table(json.loads(options.table.read_text())), end="")
        return
    named = [
        one
        for one in programs()
        if options.device in one.devices and (not options.programs or one.name in options.programs)
    ]
    if options.pack:
        pack(named, options.checkouts, options.pack)
        return
    scratch = options.scratch or Path(tempfile.mkdtemp(prefix="wild-"))
    try:
        if options.checkouts.is_file():
            options.checkouts = unpacked(options.checkouts, scratch / "checkouts")
        _measure(named, options, scratch)
    finally:
        if options.scratch is None:
            shutil.rmtree(scratch, ignore_errors=True)


def _measure(named: Sequence[Program], options: argparse.Namespace, scratch: Path) -> None:
    out = options.out or RESULTS / f"wild-{options.device}.json"
    document = about(
        "stepscope.wild/1", "wild.py", _without_folders, device=options.device
    )  # fmt: skip
    rows: dict[str, Any] = json.loads(out.read_text())["rows"] if out.exists() else {}
    commit = _source_commit()
    again = options.again
    wanted = [one for one in named if again or not _known(rows.get(one.name), commit, options.tune)]
    wanted.sort(
        key=lambda one: (rows.get(one.name, {}).get("problem") == _NO_TIME, bool(one.limit))
    )
    until = time.monotonic() + 60 * options.minutes

    def measure(program: Program) -> None:
        if time.monotonic() > until:
            return
        case = Case(program, options, scratch / program.name, until)
        row = {"stepscope": commit} | case.judged()
        if row["problem"] == _NO_TIME and program.name in rows:
            return
        rows[program.name] = row
        text = json.dumps(document | {"rows": dict(sorted(rows.items()))}, indent=1)
        out.write_text(text + "\n")
        print(line(row), file=sys.stderr, flush=True)

    with (
        neighbours(options.busy, os.sched_getaffinity(0)),
        ThreadPoolExecutor(options.jobs) as pool,
    ):
        for done in [pool.submit(measure, one) for one in wanted]:
            done.result()
    print(table(document | {"rows": dict(sorted(rows.items()))}), end="")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("checkouts", type=Path, nargs="?", metavar="CHECKOUTS")
    add("--device", choices=("cpu", "cuda"), default="cpu")
    add("--programs", type=lambda text: text.split(","), metavar="A,B", help="[all]")
    add(
        "--minutes",
        type=float,
        default=float("inf"),
        help="end after that long; the next call goes on",
    )
    add("--pairs", type=int, default=2, help="of runs for each promise; 0: measure none [2]")
    add("--tune", action="store_true", help="tune each as well, and run the patch")
    add("--budget", default="5m", help="of each tune [5m]")
    add("--busy", type=int, default=0, metavar="N", help="beside N processes that never rest")
    add("--threads", type=int, metavar="N", help="of torch, in each program [its own choice]")
    add("--jobs", type=int, default=1, help="programs at a time [1]")
    add("--timeout", type=float, default=600.0, help="seconds for one run [600]")
    add("--again", action="store_true", help="measure anew, whatever the results have")
    add("--scratch", type=Path, metavar="DIR", help="keep copies and run folders there")
    add("--out", type=Path, help="[benchmarks/results/wild-<device>.json]")
    add("--pack", type=Path, metavar="FILE", help="only write what the programs need, as .tar.xz")
    add("--table", type=Path, metavar="FILE.json", help="only print the table")
    options = parser.parse_args()
    if options.table is None:
        if options.checkouts is None or not options.checkouts.exists():
            parser.error("name the folder of checkouts, or what --pack wrote")
        names = {one.name for one in programs()}
        for name in options.programs or ():
            if name not in names:
                parser.error(f"no program {name} in the manifest")
    return options


class Case:
    """One program on one device, in a scratch folder of its own."""

    def __init__(
        self, program: Program, options: argparse.Namespace, folder: Path, until: float
    ) -> None:
        self.program, self.options, self.folder = program, options, folder.resolve()
        self.until = until
        self.copy, self.original = self.folder / "copy", self.folder / "original"
        own = [str(self.copy / one) for one in program.path]
        path = [str(HERE / "wild_site"), *own, str(SOURCE), os.environ.get("PYTHONPATH", "")]
        self.environment = {
            **os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path)), "NO_COLOR": "1",
            "PYTHONUNBUFFERED": "1", "PYTHONHASHSEED": "0", "MPLBACKEND": "agg",
            "HF_HUB_OFFLINE": "1", "WANDB_MODE": "disabled", "TQDM_DISABLE": "0",
            "HOME": str(self.folder), **program.environment,
        }  # fmt: skip
        if options.threads:
            self.environment["OMP_NUM_THREADS"] = str(options.threads)
        if options.device == "cpu":
            self.environment["CUDA_VISIBLE_DEVICES"] = ""

    def judged(self) -> dict[str, Any]:
        """Its row of the results."""
        program = self.program
        row: dict[str, Any] = {
            "program": program.name, "task": program.task, "repository": program.repository,
            "commit": program.commit, "command": " ".join(program.words(self.options.device)),
            "device": self.options.device, "beside": self.options.busy,
            "threads": self.options.threads, "problem": None,
        }  # fmt: skip
        if lacking := program.lacking():
            return row | {"problem": f"not installed: {', '.join(lacking)}"}
        others, begun = Others(), time.monotonic()
        try:
            self._prepare()
            row |= self._measured()
        except CheckoutError as problem:
            return row | {"problem": str(problem)}
        except subprocess.TimeoutExpired as problem:
            late = time.monotonic() > self.until
            row["problem"] = _NO_TIME if late else f"took more than {problem.timeout:g} s"
        return row | {
            "seconds": time.monotonic() - begun,
            "load": os.getloadavg()[1],
            "others_cores": None if self.options.jobs > 1 else others.cores(),
        }

    def _prepare(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        unpack(self.program, self.options.checkouts, self.original)
        # made at its place, since some data name it
        self.original.rename(self.copy)
        for path, what in self.program.data.items():
            make(what, self.copy / path)
        shutil.copytree(self.copy, self.original)

    def _measured(self) -> dict[str, Any]:
        program, limited = self.program, self.program.limit is not None
        cut = _CUT_S if limited else None
        bare = [self._run([sys.executable, *self._words()], cut) for _ in range(2)]
        told: dict[str, Any] = {"bare": [_ran(one) for one in bare]}
        if any(one.exit_code for one in bare):
            return told | {"problem": f"fails bare: {bare[0].error[-300:]}"}
        limit = () if program.limit is None else ("--steps", str(program.limit))
        observed, document = self._observed("run", *limit)
        told["observed"] = _ran(observed)
        found = kept(bare, observed, limited)
        if not found.output:  # what two runs printed alike by chance, a third may not
            bare += [self._run([sys.executable, *self._words()], cut) for _ in range(2)]
            found = kept(bare, observed, limited)
        told["kept"] = as_document(found)
        if document is None or (limited and observed.exit_code):
            return told | {"problem": f"fails observed: {observed.error[-300:]}"}
        expected = expected_steps(program.steps, program.limit, observed.output)
        told["expected_steps"] = expected
        told |= observed_facts(document)
        told["promises"], told["set"] = self._promises(document, limit)
        if self.options.tune:
            told["tune"] = self._tuned(limit)
        return told

    def _words(self) -> list[str]:
        return self.program.words(self.options.device)

    def _promises(self, document: Any, limit: Sequence[str]) -> tuple[list[Any], Any]:
        """Each promise, and the set the screen would have applied, measured in turn."""
        from stepscope.report.story.findings import fixes_to_run, suggested_fixes

        made = [self._tested(one, [one["fix"]], limit) for one in promises(document)]
        fixes = fixes_to_run(document, suggested_fixes(document))
        headroom = document["headroom"]
        if not fixes:
            return made, None
        by = headroom["by"] if headroom else ()
        apart = [one["id"] for one in document["findings"] if one["id"] in by and not one["fix"]]
        whole = {"fixes": fixes, "speedup": headroom and headroom["speedup"], "by_hand": apart}
        alone = next((one for one in made if [one["fix"]] == fixes), None)
        if alone is not None:
            told = {key: alone[key] for key in ("measured", "pairs", "problem") if key in alone}
            return made, whole | told
        return made, self._tested(whole, fixes, limit)

    def _tested(self, promise: Any, fixes: Sequence[str], limit: Sequence[str]) -> Any:
        """A promise with what became of it."""
        sides: dict[str, list[Any]] = {"base": [], "fixed": []}
        given = [word for fix in fixes for word in ("--fix", fix)]
        for number in range(self.options.pairs):
            for side in ("base", "fixed") if number % 2 == 0 else ("fixed", "base"):
                more = given if side == "fixed" else []
                ran, document = self._observed(side, "--no-window", *limit, *more)
                if document is None or ran.exit_code:
                    said = f"with the fix, exit code {ran.exit_code}: {ran.error[-300:]}"
                    return promise | {"problem": said if more else "the baseline failed"}
                for fix in document["fixes"]:
                    if fix["state"] != "applied":
                        promise = promise | {"refused": {fix["name"]: fix["reasons"]}}
                        if len(fixes) == 1:
                            return promise
                sides[side].append(document["steps"])
        return measured(promise, **sides) if sides["base"] else promise

    def _tuned(self, limit: Sequence[str]) -> dict[str, Any]:
        """What a tune kept and proved, and how its patch does."""
        self._fresh()
        folder = self.folder / "tune"
        shutil.rmtree(folder, ignore_errors=True)
        command = ["tune", "--json", "--quiet", "--budget", self.options.budget]
        done = self._run([*_STEPSCOPE, *command, "--out", str(folder), *self._words()], None)
        try:
            document = json.loads(done.output)
        except ValueError:
            return {"problem": done.error[-300:]}
        told = tuned(document)
        text = (document["patch"] or {}).get("text")
        if not text:
            return told
        self._fresh()
        given = subprocess.run(
            ["git", "apply", "--recount", "-"], cwd=self._cwd(), input=text, text=True,
            capture_output=True, check=False, env={**os.environ, "GIT_CEILING_DIRECTORIES": "/"},
        )  # fmt: skip
        told["patch"]["applies"] = given.returncode == 0
        if given.returncode:
            return told | {"problem": given.stderr[-300:]}
        ran, patched = self._observed("patched", "--no-window", *limit, fresh=False)
        _, base = self._observed("base", "--no-window", *limit)
        told["patch"]["exit_code"] = ran.exit_code
        if patched is not None and base is not None:
            sides = {"base": [base["steps"]], "fixed": [patched["steps"]]}
            told["patch"]["measured"] = measured({}, **sides)["measured"]
        return told

    def _observed(self, name: str, *words: str, fresh: bool = True) -> tuple[Ran, Any]:
        """A run under stepscope and `show --json` of it; None where there is no run."""
        folder = self.folder / name
        command = [*_STEPSCOPE, "run", "--quiet", "--force", "--out", str(folder), *words]
        shutil.rmtree(folder, ignore_errors=True)
        ran = self._run([*command, *self._words()], None, fresh)
        shown = subprocess.run(
            [*_STEPSCOPE, "show", str(folder), "--json"],
            env=self.environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if shown.returncode:
            return Ran(ran.exit_code, ran.seconds, "", {}, shown.stderr), None
        return ran, json.loads(shown.stdout)

    def _run(self, command: list[str], cut_s: float | None, fresh: bool = True) -> Ran:
        """In a fresh copy; ended after `cut_s` seconds where that is given."""
        if fresh:
            self._fresh()
        before = _digests(self.copy)
        begun = time.monotonic()
        child = subprocess.Popen(
            command, cwd=self._cwd(), env=self.environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
            start_new_session=True,
        )  # fmt: skip
        code: int | None
        allowed_s = min(self.options.timeout, max(1.0, self.until - begun))
        try:
            output, error = child.communicate(timeout=min(allowed_s, cut_s or allowed_s))
            code = child.returncode
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            output, error = child.communicate()
            code = None
            if cut_s is None or cut_s > allowed_s:
                raise
        seconds = time.monotonic() - begun
        after = _digests(self.copy)
        made = {name: digest for name, digest in after.items() if before.get(name) != digest}
        return Ran(code, seconds, output, made, error)

    def _cwd(self) -> Path:
        return self.copy / self.program.folder

    def _fresh(self) -> None:
        shutil.rmtree(self.copy, ignore_errors=True)
        shutil.copytree(self.original, self.copy)


_STEPSCOPE = (sys.executable, "-m", "stepscope.cli.main")


def _digests(folder: Path) -> dict[str, str]:
    found = {}
    for path in folder.rglob("*"):
        name = str(path.relative_to(folder))
        if path.is_file() and not any(part in name for part in _IGNORED):
            found[name] = hashlib.sha1(path.read_bytes()).hexdigest()[:12]
    return found


def _ran(one: Ran) -> dict[str, Any]:
    return {"exit_code": one.exit_code, "seconds": one.seconds, "lines": one.output.count("\n")}


def _known(row: Any, commit: str, tune: bool) -> bool:
    """Whether a row is of this stepscope, and whole."""
    whole = row and row["problem"] != _NO_TIME and (not tune or row["problem"] or row.get("tune"))
    return bool(whole and row["stepscope"] == commit)


def _source_commit() -> str:
    """The newest commit that changed the package, with `+` if its files differ from it; where
    there is no repository, a digest of the files."""
    if not (SOURCE.parent / ".git").exists():
        files = sorted(SOURCE.rglob("*.py"))
        return hashlib.sha1(b"".join(one.read_bytes() for one in files)).hexdigest()[:8]
    git = ["git", "-C", str(SOURCE)]
    newest = [*git, "log", "-1", "--format=%h", "--", "."]
    found = subprocess.run(newest, capture_output=True, text=True, check=False).stdout.strip()
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", "."], check=False).returncode
    return found + ("+" if changed else "")


def _without_folders(word: str) -> str:
    return "CHECKOUTS" if os.sep in word else word


if __name__ == "__main__":
    main()
