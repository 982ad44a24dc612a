"""From what was asked to the points of a grid."""

from collections.abc import Iterable, Sequence

from stepscope.bench.point import Point
from stepscope.bench.request import Request, Variant
from stepscope.record.errors import UsageError

NONE = "none"


def points(request: Request) -> list[Point]:
    """Every point once, variants next to each other; a batch of None is each model's own."""
    from stepscope.workloads.catalogue import find

    found: dict[str, Point] = {}
    for model in request.models:
        for batch in request.batches or (find(model).batch,):
            for mode in request.modes:
                for device in request.devices:
                    for variant in request.variants:
                        point = Point.of(
                            model, mode, batch, device, variant.fixes, **dict(request.settings)
                        )
                        found.setdefault(point.key(), point)
    return list(found.values())


def split_fixes(text: str) -> tuple[str, ...]:
    """The fixes of one `--fix a,b=1,c`, none for "none". Raises UsageError for what is no fix.

    A comma may also belong to a value: `compile=default,dynamic`.
    """
    from stepscope.fixes.catalogue import NAMES, fix

    if text.strip() == NONE:
        return ()
    found: list[str] = []
    for piece in (part.strip() for part in text.split(",")):
        if not piece:
            raise UsageError(f"--fix {text!r} has an empty name: --fix amp=bf16,channels_last")
        name, equals, value = found[-1].partition("=") if found else ("", "", "")
        if equals and name in NAMES and f"{value},{piece}" in fix(name).values:
            found[-1] += f",{piece}"
        elif piece == NONE:
            raise UsageError(f"--fix {text}: none stands alone")
        else:
            found.append(piece)
    return in_order(found)


def in_order(fixes: Iterable[str]) -> tuple[str, ...]:
    """Fixes checked, and in the order in which they take hold. Raises UsageError."""
    from stepscope.fixes.catalogue import NAMES, parse

    asked = list(fixes)
    parse(asked)
    return tuple(sorted(asked, key=lambda text: NAMES.index(text.partition("=")[0])))


def label(fixes: Sequence[str]) -> str:
    """A variant's name: what `--fix` takes for it."""
    return ",".join(fixes) or NONE


def variants(texts: Iterable[str]) -> tuple[Variant, ...]:
    """One variant for each `--fix`, doubles left out; no fixes at all when there is none."""
    found = dict.fromkeys(split_fixes(text) for text in texts) or {(): None}
    return tuple(Variant(label(fixes), fixes) for fixes in found)


def ablate(text: str) -> tuple[Variant, ...]:
    """None, each fix alone, the first ones together up to all, and each left out of all.

    Each combination stands once, with every part it plays: "none", "alone", "cumulative",
    "left out". Fixes add up in the order given, and take hold in their own.
    """
    asked = in_ablation(text)
    parts: list[tuple[str, tuple[str, ...]]] = [("none", ())]
    parts += [("alone", (one,)) for one in asked]
    parts += [("cumulative", asked[: count + 1]) for count in range(len(asked))]
    parts += [("left out", tuple(f for f in asked if f != one)) for one in asked]
    roles: dict[tuple[str, ...], list[str]] = {}
    for role, fixes in parts:
        roles.setdefault(in_order(fixes), []).append(role)
    return tuple(
        Variant(label(fixes), fixes, tuple(dict.fromkeys(played)))
        for fixes, played in roles.items()
    )


def in_ablation(text: str) -> tuple[str, ...]:
    """The fixes of an ablation in the order of the list: so they add up. Raises UsageError."""
    checked = split_fixes(text)
    if len(checked) < 2:
        raise UsageError(f"--ablate {text}: give two fixes or more, as in amp=bf16,channels_last")
    return tuple(sorted(checked, key=lambda one: f",{text.replace(' ', '')},".index(f",{one},")))
