"""Do two trees say the same? Their JSON documents of the same recordings, field by field.

python benchmarks/same_results.py --before OLD_TREE                   recorded runs and traces
python benchmarks/same_results.py --before OLD_TREE --results FOLDER  and results kept there
python benchmarks/same_results.py --before OLD_TREE --tunes FOLDER    and tunes recorded there
python benchmarks/same_results.py --before OLD_TREE --words           sentences compared as well

Each tree reads every recording in a process of its own: the findings, predictions and summaries of
recorded runs (`show --json`), the analyses of traces (`analyze --json`), comparisons of
neighbouring runs (`compare --json`), and whatever run, tune, bench and batch folders lie in
FOLDER. Tunes, those kept in tests/data/tunes included, are decided anew by each tree over the
trials of their journal, none of which is run again. Sentences are left out unless asked for;
`RENAMED` lists fields with other names.
Exits with 1 where something differs.
"""

import argparse
import gzip
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests" / "support"))
from recorded_tunes import lay_out, options_of  # noqa: E402

RECORDED = HERE.parent / "tests" / "causes" / "recorded"
TRACES = HERE.parent / "tests" / "data" / "traces"
TUNES = HERE.parent / "tests" / "data" / "tunes"
WORDS = frozenset(
    (
        *("title", "why", "advice", "how", "text", "words", "detail", "reasons", "where"),
        *("notes", "problems", "what", "unit", "summary", "answer", "question", "cautions"),
        *("missing", "note", "about", "verdict", "effort", "reason"),
    )
)
"""Keys whose strings are made to be read: compared with `--words` only."""
RENAMED: dict[str, str] = {"predicted.how": "predicted.reason"}
"""Fields of the earlier tree, by the name they have now; with the key they stand under where that
decides."""
_FINDINGS = ("findings[]", "minor[]", "healthy[]")
_SETTINGS = ("configuration[]", "environment[]")
ADDED = frozenset(
    (
        *(
            f"{one}.{key}"
            for one in _FINDINGS
            for key in ("level", "settings", "timeline", "refused")
        ),
        *(f"{one}.{key}" for one in _SETTINGS for key in ("part", "key", "index", "owner")),
        *(f"fixes[].{key}" for key in ("applied", "not_applied", "broke")),
        "baseline[].status",
        "timeline_stacks.host",  # empty, of windows kept before it was recorded
        *(f"rejected[].{key}" for key in ("low", "high", "verdict", "because")),
        *(f"proof.{key}" for key in ("because", "of_outputs", "baseline_repeats", "by_means")),
        *(f"proof.{key}" for key in ("draws_per_batch", "budget_exhausted", "whole_ladder")),
        *("proof.changes", "ladder[].changes"),
        *("final.failure", "final.detail", "patch.status", "patch.detail"),
        "host.other_cpu_percent",
        "request.unguarded",
        "proof.ends",
        "items[].noise_floor_processes",
        "items[].within_process_variation",
        "steps.clocked_steps",
        "config.device_switch",
        *(f".{key}" for key in ("overhead", "fix_checks", "fix_effect", "other_time", "auto")),
        *("steps.evaluations", "imports.library", "imports.libraries_s"),
        "parts[].work",
        "proof.settle",
        *(".contests", "contests[].decided", "auto.for_tune"),
    )
)
"""Fields of this tree only, with the key they stand under."""
GONE = frozenset(
    (
        *(f"{one}.what" for one in _SETTINGS),
        *("proof.words", "ladder[].adjust", "final.why", "patch.why"),
    )
)
"""Fields of the earlier tree only. `what` of a compared setting is now its part and key; `words`,
`why` and `adjust` of a tune are now reasons and changes."""
RULES_SINCE = frozenset({"launch.other_code"})
"""Rules the earlier tree lacks: their findings are left out, but they count in `baseline`, and take
in the share and evidence of findings merged with them."""
MADE_NOW = frozenset({"run.finished"})
"""When a document was made."""
TYPED = frozenset({"why", "notes", "noise_floor_from", "schema"})
"""Sentences that are records or enums now; schema versions rise with them."""
CLOSE = 1e-9  # of a number: sums in another order


def main() -> None:
    options = _options()
    with tempfile.TemporaryDirectory() as folder:
        kept = options.before / "tests" / "causes" / "recorded"
        cases = [] if options.only_tunes else list(_cases(Path(folder), kept, options.results))
        tunes = [path for place in (TUNES, options.tunes) if place for path in _tunes(place)]
        trees = [options.before.resolve(), HERE.parent]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            jobs = [
                (case, [pool.submit(_read, tree, arguments) for tree in trees])
                for case, arguments in cases
            ]
            jobs += [
                (f"tune {tune.stem}", [pool.submit(_decided, tree, tune) for tree in trees])
                for tune in tunes
            ]
            differing = 0
            paths: Counter[str] = Counter()
            for case, (before, after) in jobs:
                found = list(_differences(before.result(), after.result(), "", options.words))
                differing += bool(found)
                paths.update(path for path, _, _ in found)
                for path, old, new in found[: options.show]:
                    print(f"{case}: {path}: {_short(old)} → {_short(new)}")
    print(f"{len(jobs)} documents, {differing} differ")
    for path, count in paths.most_common(40):
        print(f"  {count:5d}  {path}")
    sys.exit(bool(differing))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--before", type=Path, required=True, help="a checkout to compare with")
    parser.add_argument("--results", type=Path, help="a folder of run, tune, bench, batch folders")
    parser.add_argument("--tunes", type=Path, help="a folder of programs, each with its tune/")
    parser.add_argument("--only-tunes", action="store_true", help="leave runs and traces out")
    parser.add_argument("--words", action="store_true", help="compare sentences too")
    parser.add_argument("--show", type=int, default=3, help="differences shown per document [3]")
    return parser.parse_args()


def _cases(folder: Path, kept: Path, results: Path | None) -> Iterator[tuple[str, list[str]]]:
    """(name, arguments of `stepscope`) of every document. Recordings that are not in `kept`, the
    earlier tree's, were made since, and it need not read them."""
    runs = []
    for archive in sorted(RECORDED.glob("*.zip")):
        if not (kept / archive.name).exists():
            continue
        with zipfile.ZipFile(archive) as packed:
            packed.extractall(folder / archive.stem)
        trace = folder / archive.stem / "window.pt.trace.json"
        if trace.exists():
            with gzip.open(f"{trace}.gz", "wb", compresslevel=1) as file:
                file.write(trace.read_bytes())
            trace.unlink()
        runs.append(folder / archive.stem)
    for path in sorted(results.iterdir()) if results is not None else ():
        if (path / "run.json").exists():
            shutil.copytree(path, folder / path.name)
            runs.append(folder / path.name)
        elif path.is_dir():
            yield path.name, ["report", str(path), "-o", "-", "--format", "json"]
    for run in runs:
        yield f"show {run.name}", ["show", str(run), "--json"]
    for one, two in pairwise(runs):
        yield f"compare {one.name} {two.name}", ["compare", str(one), str(two), "--json"]
    for trace in sorted(TRACES.iterdir()):
        if trace.suffix == ".gz" and "raw.csv" not in trace.name:
            yield f"analyze {trace.name}", ["analyze", str(trace), "--json"]


def _tunes(place: Path) -> list[Path]:
    """Archives of tunes, or programs that have one beside them."""
    return sorted(path for path in place.iterdir() if path.suffix == ".zip" or path.is_dir())


def _read(tree: Path, arguments: list[str]) -> Any:
    """The document that one tree makes."""
    with tempfile.TemporaryDirectory() as cwd:
        return _run(tree, ["-m", "stepscope.cli.main", *arguments], Path(cwd))


def _decided(tree: Path, recorded: Path) -> Any:
    """The document of a tune whose trials are all in its journal."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder).resolve() / "project"
        lay_out(recorded, place, upgrade=tree == HERE.parent)
        resume = ["tune", "--resume", "tune", "--json", "--quiet", *options_of(place)]
        document = _run(tree, ["-c", _REPLAY, *resume], place)
        return json.loads(json.dumps(document).replace(str(place), "."))


_REPLAY = """
import sys
from importlib import import_module


def either(*names):
    for name in names:
        try:
            return import_module(name)
        except ImportError:
            pass


def not_recorded(self, request):
    from stepscope.record.errors import UsageError
    raise UsageError(f"not in the journal: {request}")


journal = either("stepscope.measure.journal", "stepscope.tune.journal")
journal._difference = lambda then, now: None  # another machine, other versions
runner = either("stepscope.measure.runner", "stepscope.tune.runner")
either_class = getattr(runner, "TrialRunner", None) or runner.Runner
either_class.__call__ = not_recorded
from stepscope.cli.main import main
main()
"""


def _run(tree: Path, command: list[str], cwd: Path) -> Any:
    """What it prints as JSON; its error where it prints none."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {
            **os.environ,
            "PYTHONPATH": str(tree / "src"),
            "STEPSCOPE_CACHE": cache,
            "PYTHONHASHSEED": "0",
        }
        ended = subprocess.run(
            [sys.executable, *command],
            capture_output=True, text=True, env=environment, check=False, cwd=cwd,
        )  # fmt: skip
    try:
        return json.loads(ended.stdout)
    except ValueError:
        return {"exit code": ended.returncode, "text": ended.stderr.strip()[-300:]}


def _differences(old: Any, new: Any, path: str, words: bool) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(old, dict) and isinstance(new, dict):
        under = path.rpartition(".")[2]
        old = {_renamed(under, key): value for key, value in old.items()}
        for key in dict.fromkeys((*old, *new)):
            if key not in old and f"{under}.{key}" in ADDED:
                continue
            if key not in new and f"{under}.{key}" in GONE:
                continue
            if f"{under}.{key}" in MADE_NOW or (key in TYPED and _is_prose(old.get(key))):
                continue
            if key not in old or key not in new:
                yield f"{path}.{key}", old.get(key, "(absent)"), new.get(key, "(absent)")
            elif key == "edit" and old[key] is None:
                continue  # fixes without an edit of their own have a call of stepscope.apply now
            elif words or key not in WORDS or not _is_prose(old[key], new[key]):
                yield from _differences(old[key], new[key], f"{path}.{key}", words)
    elif isinstance(old, list) and isinstance(new, list):
        new = [one for one in new if not (isinstance(one, dict) and one.get("id") in RULES_SINCE)]
        if len(old) != len(new):
            yield path, len(old), len(new)
        for one, two in zip(old, new, strict=False):
            yield from _differences(one, two, f"{path}[]", words)
    elif not _same(old, new):
        yield path or ".", old, new


def _renamed(under: str, key: str) -> str:
    """The name a field has now."""
    return RENAMED.get(f"{under}.{key}", RENAMED.get(key, key)).rpartition(".")[2]


def _is_prose(*values: Any) -> bool:
    """Whether values are strings, or lists of them."""
    return all(
        isinstance(value, str) or (isinstance(value, list) and _is_prose(*value))
        for value in values
    )


def _same(old: Any, new: Any) -> bool:
    numbers = isinstance(old, int | float) and isinstance(new, int | float)
    if numbers and not isinstance(old, bool) and not isinstance(new, bool):
        return bool(old == new or abs(old - new) <= CLOSE * max(abs(old), abs(new)))
    return bool(old == new)


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 90 else f"{text[:87]}…"


if __name__ == "__main__":
    main()
