"""Random words in place of sentences: what decides anything must not read them."""

import gc
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from stepscope.diagnose import findings
from stepscope.diagnose.case import Rule
from stepscope.diagnose.rules import RULES
from stepscope.fixes.base import Fix
from stepscope.fixes.registry import all_fixes
from stepscope.measure.trial.record import Trial
from stepscope.record import fix_words
from stepscope.record.finding import Finding
from stepscope.record.fix import DataChange, Reason, Target, TraitKind

_TRAPS = (
    "order",
    "samples",
    "draw",
    "does not fit into memory",
    "samples only",
    "steady",
    "at train.py:99",
    "Net, called at train.py:99",
    " in fp16 on cpu",
    "asks for",
    "over the program's own",
    "(a class of torch.nn)",
    "the DataLoader",
    "one ",
)
"""Phrases that decided something once."""


class RandomWords:
    """Each sentence becomes random words, the same ones wherever it stands; braces are left out, so
    that they can stand for templates too."""

    def __init__(self, seed: int | str = 0) -> None:
        self._random = random.Random(seed)
        self._known: dict[str, str] = {"": ""}

    def __call__(self, text: str) -> str:
        if text not in self._known:
            letters = "abcdefghijklmnopqrstuvwxyz .:=`0123456789"
            some = "".join(self._random.choices(letters, k=self._random.randint(1, 60)))
            self._known[text] = some + self._random.choice(_TRAPS) + some[::-1]
        return self._known[text]

    def inside(self, value: Any, keys: tuple[str, ...]) -> Any:
        """A JSON document with the sentences under these keys replaced."""
        if isinstance(value, dict):
            return {
                key: self._all(one) if key in keys else self.inside(one, keys)
                for key, one in value.items()
            }
        return [self.inside(one, keys) for one in value] if isinstance(value, list) else value

    def _all(self, value: Any) -> Any:
        if isinstance(value, str):
            return self(value)
        return [self._all(one) for one in value] if isinstance(value, list) else value

    def finding(self, one: Finding) -> Finding:
        """The same facts in random words."""
        predicted = one.predicted
        return structs.replace(
            one,
            title=self(one.title),
            why=self(one.why),
            advice=self(one.advice),
            evidence=tuple(
                structs.replace(each, what=self(each.what), unit=self(each.unit))
                for each in one.evidence
            ),
            predicted=predicted and structs.replace(predicted, reason=self(predicted.reason)),
        )

    def rule(self, one: Rule) -> Rule:
        """A rule that finds the same and says it in random words."""
        find = one.find
        return replace(
            one, cause=self(one.cause), find=lambda case: [*map(self.finding, find(case))]
        )


def declared(kind: type) -> list[Any]:
    """All reasons or targets with words, wherever a fix declares them."""
    all_fixes()
    gc.unfreeze()  # what is frozen is not among the objects
    found = [one for one in gc.get_objects() if type(one) is kind and one.words]
    gc.freeze()
    assert len(found) > 10, f"only {len(found)} of {kind.__name__} found"
    return found


def replace_all_words(some: RandomWords, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every sentence of rules, findings, fixes and failed trials becomes random words."""
    rules = tuple(map(some.rule, RULES))
    monkeypatch.setattr(findings, "all_rules", lambda: (rules, []))
    failure = Trial.failure.fget
    monkeypatch.setattr(Trial, "failure", property(lambda trial: some(failure(trial))))
    opened = {key: some(text) for key, text in fix_words._OPEN.items()}
    monkeypatch.setattr(fix_words, "_OPEN", opened)
    for member in (*DataChange, *TraitKind):
        monkeypatch.setattr(member, "words", some(member.words))
    for fix in all_fixes():
        for name in ("title", "missing", "effort"):
            if isinstance(getattr(fix, name), str):
                monkeypatch.setattr(type(fix), name, some(getattr(fix, name)))
        monkeypatch.setattr(type(fix), "edit", _edited(type(fix).edit, some))
    for kind in (Reason, Target):  # wherever a fix declares them
        for name in {*kind.__slots__} - {"id"}:
            monkeypatch.setattr(kind, name, _randomly(getattr(kind, name), some))


def _randomly(slot: Any, some: RandomWords) -> property:
    return property(lambda one: some(slot.__get__(one)), slot.__set__)


def _edited(edit: Callable[..., Any], some: RandomWords) -> Callable[..., Any]:
    def edited(self: Fix, value: Any, line: str) -> Any:
        found = edit(self, value, line)
        return replace(found, words=some(found.words))

    return edited
