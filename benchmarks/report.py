"""How large a report is, how soon it can be used, and how smoothly its timeline zooms.

python benchmarks/report.py                      measure, write the results, print the table
python benchmarks/report.py --table FILE.json    print the table of earlier results

A made-up window of training is analysed and written as the page that `stepscope report` makes of a
trace, and visited in a headless Chromium that draws without a GPU, each time afresh.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _about import SOURCE, about
from _report_browser import chromium, visit

RESULTS = Path(__file__).resolve().parent / "results"
SIZES = [20_000, 200_000, 1_000_000]
SCHEMA = "stepscope.report/1"


def main() -> None:
    # This checkout is measured, installed or not.
    sys.path[:0] = [str(SOURCE), str(SOURCE.parent / "tests" / "support")]
    options = arguments()
    if options.table:
        print(table(json.loads(options.table.read_text())), end="")
        return
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        document = about(SCHEMA, "report.py", device="cpu")
        document["versions"]["chromium"] = browser.version
        document["cases"] = list(cases(options, Path(folder), browser))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(document, indent=1) + "\n")
    print(table(document), end="")


def cases(options: argparse.Namespace, folder: Path, browser: Any) -> Iterator[dict[str, Any]]:
    """Each size's page, then visits; what is told of them are medians over the visits."""
    for size in options.sizes:
        file = folder / f"{size}.html"
        case = written(size, file)
        visit(browser, file)  # the first starts processes of the browser
        visits = [visit(browser, file) for _ in range(options.visits)]
        print(f"{size:,} events: {len(visits)} visits", file=sys.stderr, flush=True)
        yield case | summary(visits)


def written(size: int, file: Path) -> dict[str, Any]:
    """A window of that many events as a page, and what its making took."""
    from _report_timeline import made_up
    from packed_timelines import unpacked

    from stepscope.report.render.html.page import render_page
    from stepscope.report.render.html.timeline import encode_timeline
    from stepscope.report.story.narrator import story_of
    from stepscope.results.load import Trace

    timeline = made_up(size)
    story = story_of(Trace(Path(timeline.source), timeline))
    began = time.perf_counter()
    payload = encode_timeline(timeline)
    encoded = time.perf_counter()
    file.write_text(render_page(story, payload), encoding="utf-8")
    return {
        "events": len(timeline.host) + len(timeline.device),
        "merged": unpacked(payload)[0]["merged"],
        "file_bytes": file.stat().st_size,
        "timeline_bytes": len(payload),
        "encode_s": encoded - began,
        "render_s": time.perf_counter() - encoded,
    }


def summary(visits: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over visits; frames of all of them together."""
    draws = [ms for one in visits for ms in one["draws"]]
    intervals = [ms for one in visits for ms in one["intervals"]]
    return {
        "visits": len(visits),
        "first_paint_ms": statistics.median(one["first_paint_ms"] or 0.0 for one in visits),
        "timeline_ms": statistics.median(one["timeline_ms"] for one in visits),
        "interactive_ms": statistics.median(one["interactive_ms"] for one in visits),
        "interactive_ms_each": [one["interactive_ms"] for one in visits],
        "frames": len(draws),
        "draw_ms": _spread(draws),
        "frame_interval_ms": _spread(intervals),
    }


def _spread(values: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(values, n=100)
    return {
        "median": statistics.median(values),
        "p95": cuts[94],
        "p99": cuts[98],
        "max": max(values),
    }


def table(document: dict[str, Any]) -> str:
    """As Markdown."""
    heads = (
        "events | file | timeline in it | first paint | timeline | interactive"
        " | drawing a frame | p95"
    )
    rows = [
        f"| {case['events']:,} | {case['file_bytes'] / 1e6:.2f} MB"
        f" | {case['timeline_bytes'] / 1e6:.2f} MB | {case['first_paint_ms']:.0f} ms"
        f" | {case['timeline_ms']:.0f} ms | {case['interactive_ms']:.0f} ms"
        f" | {case['draw_ms']['median']:.1f} ms"
        f" | {case['draw_ms']['p95']:.1f} ms | {case['frame_interval_ms']['median']:.1f} ms |"
        for case in document["cases"]
    ]
    rule = "| ---: " * 9 + "|"
    return "\n".join([f"| {heads} | from frame to frame |", rule, *rows]) + "\n"


def arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=_sizes, default=SIZES, help="events [20000,200000,1000000]")
    parser.add_argument("--visits", type=int, default=7, help="of each page [7]")
    parser.add_argument("--out", type=Path, default=RESULTS / "report.json")
    parser.add_argument("--table", type=Path, metavar="FILE.json", help="only print the table")
    return parser.parse_args()


def _sizes(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


if __name__ == "__main__":
    main()
