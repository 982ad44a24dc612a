"""A story with every block there is, and one whose every word is hostile."""

import math
from dataclasses import fields, is_dataclass, replace
from typing import Any

from stepscope.report.story.blocks import (
    Axis,
    Card,
    Chart,
    Code,
    Column,
    Excerpt,
    Facts,
    Missing,
    Paragraph,
    Section,
    Series,
    Story,
    Table,
    TimelineView,
    Weight,
)

PHASES = (
    ("data wait", 48.9),
    ("copy", 2.7),
    ("forward", 3.0),
    ("backward", 5.1),
    ("optimizer", 1.6),
    ("other", 1.8),
)
LOADER = Card(
    "data.loader_bound",
    "The GPU waits for the data loader",
    "exact",
    "−46.1 ms",
    "The DataLoader has num_workers=0: samples are made while the GPU waits. Resize is 61% of it.",
    "num_workers=12, persistent_workers=True",
    "one line",
    "high",
    predicted="2.6× (2.4–2.8)",
    measured="2.70×",
    evidence=(("data wait", "48.9 ms of 63.1 ms a step"), ("GPU busy", "14%"), ("workers", "0")),
    excerpt=Excerpt(
        "train.py",
        29,
        (
            "dataset = Folder(root, transform=Resize(224))",
            "",
            "loader = DataLoader(dataset, batch_size=32)",
            "for x, y in loader:",
            "    loss = step(x, y)",
        ),
        31,
    ),
    before="loader = DataLoader(dataset, batch_size=32)",
    edit=(
        "loader = DataLoader(",
        "    dataset, batch_size=32, num_workers=12, persistent_workers=True",
        ")",
    ),
    command="stepscope run --fix workers=12 train.py --epochs 3",
    at_ns=(1_000_000, 49_900_000),
)
PRECISION = Card(
    "compute.fp32",
    "Convolutions run in fp32, tensor cores idle",
    "numeric",
    "−2.9 ms",
    "93% of the time of kernels is in fp32 convolutions.",
    "autocast(bfloat16)",
    "some lines",
    "medium",
    predicted="1.3× (1.1–1.5)",
    search="implicit_convolve_sgemm",
    command="stepscope run --fix amp=bf16 train.py --epochs 3",
)
BATCH = Card(
    "compute.small_batch",
    "The batch is small for this GPU",
    "semantic",
    "1.4×",
    "32 samples fill 9% of the GPU's units.",
    "Try `stepscope batch train.py`; the learning rate may need to follow.",
    "some lines",
    "low",
)


def kernels(count: int = 60) -> Table:
    """Names of kernels with numbers, some of them unknown."""
    columns = (
        Column("kernel"),
        Column("category"),
        Column("count", "per step", number=True),
        Column("total", "ms", number=True),
        Column("share", number=True, percent=True),
        Column("of peak", number=True, percent=True),
    )
    rows = tuple(
        (
            f"void cutlass::Kernel2<cutlass_80_tensorop_bf16_gemm_relu_{at}x128_32x5_nn_align8>"
            if at % 3 == 0
            else f"elementwise_{at}",
            ("matmul", "elementwise", "copy")[at % 3],
            (at * 7) % 13 + 1,
            120.5 / (at + 1),
            1 / (at + 2.0),
            None if at % 4 == 0 else 0.9 / (at + 1),
        )
        for at in range(count)
    )
    return Table("kernels", columns, rows, "Kernels")


def charts() -> tuple[Chart, ...]:
    """One of each kind."""
    steps = list(range(200))
    times = [62 + 4 * math.sin(at / 9) + (30 if at < 4 else 0) for at in steps]
    counts = [5.0, 21.0, 40.0, 62.0, 38.0, 22.0, 9.0, 3.0]
    stacked = Chart(
        "step",
        "stacked",
        "One step",
        tuple(Series(name, ["step"], [ms]) for name, ms in PHASES),
        y=Axis("ms"),
        across=True,
        note="Means over 408 steps; they add up to the mean step.",
    )
    line = Chart(
        "steps",
        "line",
        "Steps over time",
        (Series("step", steps, times), Series("gap", steps, [math.nan, *times[1:]])),
        Axis("step"),
        Axis("ms"),
    )
    spread = Chart(
        "spread", "histogram", "Step times", (Series("", [58 + at for at in range(8)], counts),)
    )
    roof = Chart(
        "roofline",
        "scatter",
        "Roofline",
        (
            Series(
                "kernels", [1.0, 12.0, 90.0], [2e11, 4e12, 9e13], ["a", "b", "c"], size=[1, 4, 9]
            ),
            Series("memory", [0.5, 200.0], [2e12, 8e14], line=True),
        ),
        Axis("FLOP per byte", log=True),
        Axis("FLOP/s", log=True),
    )
    tree = Chart(
        "categories",
        "treemap",
        "Kernels by category",
        (
            Series(
                "",
                ["all", "matmul", "elementwise", "gemm_a", "gemm_b", "relu", "add"],
                [0.0, 0.0, 0.0, 40.0, 22.0, 9.0, 5.0],
                parents=["", "all", "all", "matmul", "matmul", "elementwise", "elementwise"],
            ),
        ),
    )
    batches = Chart(
        "batches",
        "bars",
        "Throughput by batch",
        (
            Series(
                "samples/s",
                ["8", "16", "32"],
                [90.0, 170.0, 310.0],
                low=[80, 160, 300],
                high=[99, 180, 321],
            ),
        ),
        Axis("batch"),
        Axis("samples/s"),
    )
    losses = Chart(
        "losses",
        "line",
        "Losses",
        (Series("control", steps[:30], times[:30], low=times[1:31], high=times[2:32]),),
        Axis("step"),
        Axis("loss"),
    )
    return stacked, line, spread, roof, batches, losses, tree


def whole() -> Story:
    """Every block."""
    step, line, spread, roof, batches, losses, tree = charts()
    return Story(
        "train.py",
        "63.1 ms a step, and the GPU is busy for 14% of it: 9.9 ms are in reach (6.4×).",
        "412 steps · NVIDIA H200 · torch 2.11 · 15 November, 14:10",
        (
            Section(
                "step",
                "The step",
                (Paragraph("Most of a step is spent waiting for data.", True), step, line, spread),
            ),
            Section("findings", "Findings", (LOADER, PRECISION, BATCH)),
            Section("timeline", "Timeline", (TimelineView(18_214, "window.pt.trace.json.gz"),)),
            Section("kernels", "Kernels", (kernels(), roof, tree), Weight.DETAIL),
            Section("bench", "Batches", (batches, losses)),
            Section(
                "memory",
                "Memory",
                (
                    Missing(
                        "Owners of memory were not recorded.",
                        "stepscope run --memory train.py --epochs 3",
                    ),
                ),
            ),
            Section(
                "environment",
                "Environment",
                (
                    Facts(
                        (
                            ("GPU", "NVIDIA H200"),
                            ("driver", "570.86"),
                            ("torch", "2.11.0"),
                            ("Python", "3.12.3"),
                        )
                    ),
                    Paragraph("Steps 0 to 3 are warm-up."),
                    Code("stepscope tune train.py --epochs 3", "sh"),
                ),
            ),
        ),
        "run",
    )


def without_charts(story: Story) -> Story:
    """The same, for a page that is there at once."""
    parts = [
        replace(part, blocks=tuple(one for one in part.blocks if not isinstance(one, Chart)))
        for part in story.sections
    ]
    return replace(story, sections=tuple(parts))


HOSTILE = (
    "</script><script>document.title='run'</script><img src=x onerror=\"document.title='run'\">"
    "<a href=\"javascript:document.title='run'\">x</a><!--]]>' \" & \u2028 \x1b[31m \u202e ${7*7} "
    "%{x} <b>bold</b> <style>*{display:none}</style> \udc80"
)


def hostile(value: Any) -> Any:
    """The same value with markup in every word a stranger may have written."""
    if isinstance(value, str):
        return HOSTILE + value
    if isinstance(value, tuple | list):
        return type(value)(hostile(one) for one in value)
    if not is_dataclass(value) or isinstance(value, type):
        return value
    kept = ("id", "kind", "language") if not isinstance(value, Card) else ("kind",)
    changed = {f.name: hostile(getattr(value, f.name)) for f in fields(value) if f.name not in kept}
    return replace(value, **changed)
