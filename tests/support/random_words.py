"""Random words in place of sentences: what decides anything must not read them."""

import random
import sys
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
from stepscope.measure import trial
from stepscope.record import fix_words
from stepscope.record.finding import Finding

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


MADE_OF_RECORDS = ("applied_words", "refusal_words", "break_words", "trait_words")
"""Functions of `fix_words` that make a sentence of what a fix did."""


def replace_all_words(some: RandomWords, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every sentence of rules, findings, fixes and failed trials becomes random words."""
    rules = tuple(map(some.rule, RULES))
    monkeypatch.setattr(findings, "all_rules", lambda: (rules, []))
    makers = [getattr(fix_words, name) for name in MADE_OF_RECORDS]
    for made in (*makers, trial.trial_failure):
        _replace_function(made, some, monkeypatch)
    for fix in all_fixes():
        for name in ("title", "missing", "effort"):
            if isinstance(getattr(fix, name), str):
                monkeypatch.setattr(type(fix), name, some(getattr(fix, name)))
        monkeypatch.setattr(type(fix), "edit", _edited(type(fix).edit, some))


def _replace_function(
    made: Callable[..., str], some: RandomWords, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it was imported to."""

    def random_sentence(*arguments: Any) -> str:
        return some(made(*arguments))

    for name, module in [*sys.modules.items()]:
        if name.startswith("stepscope.") and getattr(module, made.__name__, None) is made:
            monkeypatch.setattr(module, made.__name__, random_sentence)


def _edited(edit: Callable[..., Any], some: RandomWords) -> Callable[..., Any]:
    def edited(self: Fix, value: Any, line: str) -> Any:
        found = edit(self, value, line)
        return replace(found, words=some(found.words))

    return edited
