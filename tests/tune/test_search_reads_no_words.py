"""A whole tune in random words: candidates, trials, ladder, rejections, proofs and patch stay the
same when every sentence of rules, findings, fixes and failed trials is replaced.

Scouts are recorded runs; the trials that follow are those of a simulated machine.
"""

import gzip
import json
import os
import zipfile
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pytest
from random_words import RandomWords, replace_all_words
from tune_machine import Machine, compute_bound, launch_bound, slow_program, untouched

from stepscope.fixes.data.workers import LOADER_WORKERS
from stepscope.fixes.registry import fix_named
from stepscope.launch.program import Program
from stepscope.measure.journal import JOURNAL_FILE
from stepscope.record.fix import (
    OTHER_TARGET,
    Applied,
    DataChange,
    FixKind,
    FixOutcome,
    FixState,
    SourceLine,
    Trait,
    TraitKind,
    Variation,
)
from stepscope.tune import tuner
from stepscope.tune.request import TuneRequest

CAUSES = Path(__file__).parent.parent / "causes"
RECORDED_UNDER = "/home/me/project"
WORDS = ("title", "words", "where", "reasons", "detail", "text")
"""Keys of what is made to be read."""
NAMED_BY_DETAIL = ("not_allowed", "needs_device", "requires", "little_wait", "small_batches")
"""Reasons of a rejection whose detail is a fact."""


@dataclass(frozen=True)
class Scene:
    """A recorded scout, the true step times, and how trials with a fix fail or differ."""

    program: str
    step_ms: object
    fails: dict[str, tuple[str, str]]
    changes_losses: str = ""
    allow: str = "numeric"
    budget_s: float = 2000.0


SCENES = (
    Scene(
        "loader_bound_cuda",
        slow_program,
        {"prefetch": ("failed", "ValueError: samples in another order at train.py:9")},
    ),
    Scene(
        "synchronize_every_step",
        slow_program,
        {"cudnn_benchmark": ("out_of_memory", "CUDA out of memory")},
    ),
    Scene(
        "unfused_optimizer_cuda",
        launch_bound,
        {
            "cuda_graph": ("not_applicable", "the program draws random numbers on the host"),
            "compile=reduce-overhead": ("broke", "a batch of 8 does not fit into memory"),
        },
    ),
    Scene(
        "fp32_matmul",
        compute_bound,
        {"amp=bf16": ("timed_out", "no end after 60 s")},
        changes_losses="tf32=on",
    ),
    Scene("healthy_products_cuda", untouched, {}, allow="semantic", budget_s=400.0),
)


class SimulatedRunner(Machine):
    """Stands in for the one that starts processes."""

    baseline = None

    def __init__(self, scene, folder, words):
        fails = {fix: (status, words(why)) for fix, (status, why) in scene.fails.items()}
        super().__init__(scene.step_ms, ends=fails, told=self.told)
        self.scene, self.folder, self.words = scene, folder, words

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def folder_of(self, number):
        return self.folder / "trials" / f"{number:04d}"

    def told(self, ask):
        return {
            "fixes": tuple(map(self.outcome, ask.fixes)),
            "losses": self.losses(ask),
            "proof": {"rates": [0.1] * ask.steps},
        }

    def losses(self, ask):
        """A falling curve: numeric fixes move it by rounding, other draws by more."""
        kinds = {fix_named(fix.partition("=")[0]).kind for fix in ask.fixes}
        noise = np.random.default_rng([ask.seed, len(ask.fixes), ask.perturb is not None])
        moved = 1e-3 * (FixKind.NUMERIC in kinds or ask.perturb is not None)
        moved = 1e-2 if any(fix.startswith("workers") for fix in ask.fixes) else moved
        moved = 0.3 if self.scene.changes_losses in ask.fixes else moved
        curve = 2.0 * np.exp(-np.arange(ask.steps) / 30) * (1 + 0.1 * (ask.seed % 3))
        return tuple((curve * (1 + moved * noise.standard_normal(ask.steps))).tolist())

    def outcome(self, text):
        """As the fix would report it, with its own words where it has some."""
        name, _, value = text.partition("=")
        place = SourceLine(self.scene.program + ".py", line_of(self.scene.program, name))
        kind, varies, target = fix_named(name).kind, None, OTHER_TARGET
        if name == "workers":
            because = Trait(TraitKind.USES, "rand", SourceLine("reorder.py", 3))
            kind, target = FixKind.NUMERIC, LOADER_WORKERS
            varies = Variation(DataChange.DRAWS, because=because)
        detail = self.words("samples in another order at train.py:99")
        record = Applied(
            target,
            "Sequential",
            place,
            0,
            value or 1,
            kind=kind,
            varies=varies,
            detail=detail,
            dtype="bf16",
            device="cuda",
        )
        return FixOutcome(name, value or None, FixState.APPLIED, kind, (record,))


def line_of(program, fix):
    """Where a program does what a fix changes."""
    text = (CAUSES / "programs" / f"{program}.py").read_text().splitlines()
    wanted = {"workers": "DataLoader(", "pin": "DataLoader(", "nosync": "synchronize()"}
    return next((n for n, line in enumerate(text, 1) if wanted.get(fix, "model(") in line), 1)


def scout_of(scene, cwd, folder):
    """Unpack the recorded run as the first trial, beside its program."""
    source = cwd / f"{scene.program}.py"
    source.write_text((CAUSES / "programs" / source.name).read_text())
    os.utime(source, (0, 0))
    folder.mkdir(parents=True)
    with zipfile.ZipFile(CAUSES / "recorded" / f"{scene.program}.zip") as packed:
        packed.extractall(folder)
    for path in folder.glob("*.json*"):
        recorded = f"{RECORDED_UNDER}/tests/causes/programs/"
        path.write_text(path.read_text().replace(recorded, f"{cwd}/"))
    trace = folder / "window.pt.trace.json"
    if trace.exists():
        with gzip.open(f"{trace}.gz", "wb", compresslevel=1) as file:
            file.write(trace.read_bytes())


def tuned(scene, place, words, monkeypatch):
    """The document of a whole tune and its trials, without what is made to be read."""
    cwd, folder = place / "project", place / "project" / "tune"
    cwd.mkdir(parents=True)
    monkeypatch.setenv("STEPSCOPE_CACHE", str(place / "cache"))
    request = TuneRequest(
        Program(f"{scene.program}.py", (), module=False), scene.budget_s, allow=scene.allow
    )
    runner = SimulatedRunner(scene, folder, words)
    monkeypatch.setattr(tuner, "TrialRunner", lambda *_, **__: runner)
    with tuner.open_tune(request, folder, resume=False, force=False, cwd=cwd) as tune:
        scout_of(scene, cwd, runner.folder_of(1))
        document = msgspec.to_builtins(tune.run(lambda event: None))
    lines = (folder / JOURNAL_FILE).read_text().splitlines()[1:]
    trials = [json.loads(line)["trial"] for line in lines]
    return without_words(document), without_words(trials), document


def without_words(value):
    if isinstance(value, dict):
        kept = {key: without_words(one) for key, one in value.items() if key not in WORDS}
        if value.get("reason") in NAMED_BY_DETAIL:
            kept["detail"] = value.get("detail")
        for name in ("folder", "finished"):
            kept.pop(name, None)
        return kept
    return [*map(without_words, value)] if isinstance(value, list | tuple) else value


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """The tunes with their own words, by program."""
    with pytest.MonkeyPatch.context() as patches:
        place = tmp_path_factory.mktemp("said")
        return {
            scene.program: tuned(scene, place / scene.program, str, patches) for scene in SCENES
        }


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.program)
def test_random_words_change_nothing_of_a_tune(said, scene, seed, tmp_path, monkeypatch):
    document, trials, whole = said[scene.program]
    words = RandomWords(seed)
    replace_all_words(words, monkeypatch)
    other, made, scrambled = tuned(scene, tmp_path, words, monkeypatch)
    assert made == trials
    for part in ("ladder", "rejected", "untried", "final", "patch", "stopped"):
        assert other[part] == document[part], part
    assert other == document
    assert sentences(scrambled).isdisjoint(sentences(whole))


CALL = "call stepscope.apply("


def sentences(document):
    """Some of those that were replaced."""
    patch = document["patch"] or {"edits": (), "by_hand": ()}
    said = [one["words"] for one in (*patch["edits"], *patch["by_hand"])]
    titles = (one["title"] for one in document["scout"]["findings"])
    return {*titles, *(words for words in said if not words.startswith(CALL))}  # which is code


def test_the_tunes_come_to_every_kind_of_decision(said):
    """Else their being equal would say little."""
    documents = [document for document, _, _ in said.values()]
    states = {one["state"] for document in documents for one in document["rejected"]}
    assert states >= {
        *("left_out", "not_better", "differs", "dropped"),
        *("failed", "broke", "not_applicable", "out_of_memory", "timed_out"),
    }
    rungs = [rung for document in documents for rung in document["ladder"]]
    assert {rung["proof"]["state"] for rung in rungs} >= {"identical", "matches"}
    assert any(rung["proof"]["by_means"] for rung in rungs)
    patches = [document["patch"] for document in documents if document["patch"]]
    assert any(patch["edits"] for patch in patches)
    worded = [whole["patch"] for _, _, whole in said.values() if whole["patch"]]
    edits = [one["words"] for patch in worded for one in patch["edits"]]
    assert any(words.startswith(CALL) for words in edits)
    assert {patch["status"] for patch in patches} >= {"measured"}
    assert any(document["final"] and document["final"]["confirmed"] for document in documents)
    assert not said["healthy_products_cuda"][0]["ladder"]
