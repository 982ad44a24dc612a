"""What HTA (traceinsight) says of the recordings, written to tests/data/hta.json.

python tests/support/record_hta.py [NAME...]     in an environment with traceinsight

Answers of one trace under one pandas replace earlier ones; all others stay.
"""

import gzip
import json
import logging
import sys
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

DATA = Path(__file__).resolve().parent.parent / "data"
OUT = DATA / "hta.json"
ENDS = ".json.gz"
HEAVIEST = 5


def main() -> None:
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    names = sys.argv[1:] or [path.name[: -len(ENDS)] for path in DATA.glob(f"traces/*{ENDS}")]
    kept = json.loads(OUT.read_text()) if OUT.exists() else {"answers": [], "failures": []}
    versions = {name: version(name) for name in ("traceinsight", "pandas")}
    for entries in kept.values():
        entries[:] = [
            entry for entry in entries if entry["trace"] not in names or entry["with"] != versions
        ]
    for name in sorted(names):
        try:
            found = [answer(name, last) for last in (True, False)]
        except Exception as problem:  # whatever HTA raises is what is recorded
            text = f"{type(problem).__name__}: {problem}".splitlines()[0]
            kept["failures"].append({"trace": name, "with": versions, "error": text[:200]})
        else:
            kept["answers"] += [{"trace": name, "with": versions, **said} for said in found]
    for entries in kept.values():
        entries.sort(key=lambda entry: (entry["trace"], entry["with"]["pandas"]))
    OUT.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")


def answer(name: str, last_step: bool) -> dict[str, Any]:
    """HTA's numbers of one trace, with the last step or, as is HTA's default, without."""
    from hta.trace_analysis import TraceAnalysis

    path = DATA / "traces" / f"{name}{ENDS}"
    analysis = TraceAnalysis(trace_files={0: str(path)}, include_last_profiler_step=last_step)
    table = analysis.t.get_trace(0)
    device = table[table["stream"].ne(-1)]
    symbols = analysis.t.symbol_table.get_sym_table()
    times = analysis.get_temporal_breakdown(visualize=False).iloc[0]
    types, kernels = analysis.get_gpu_kernel_breakdown(
        visualize=False, duration_ratio=1.0, num_kernels=10**6
    )
    overlap = analysis.get_comm_comp_overlap(visualize=False)["comp_comm_overlap_pctg"].iloc[0]
    heaviest = kernels.sort_values("sum (us)", ascending=False).head(HEAVIEST)
    return {
        "last_step": last_step,
        "base_ns": int(_document(path).get("baseTimeNanoseconds", 0)),
        "events": {symbols[c]: int(n) for c, n in device["cat"].value_counts().items()},
        "of_no_duration": int(device["dur"].eq(0).sum()),
        "of_negative_duration": int(device["dur"].lt(0).sum()),
        "idle_us": int(times["idle_time(us)"]),
        "compute_us": int(times["compute_time(us)"]),
        "non_compute_us": int(times["non_compute_time(us)"]),
        "kernel_time_us": int(times["kernel_time(us)"]),
        "types_us": {row["kernel_type"]: int(row["sum"]) for _, row in types.iterrows()},
        "overlap_percent": None if overlap != overlap else float(overlap),
        "heaviest_us": {row["name"]: int(row["sum (us)"]) for _, row in heaviest.iterrows()},
    }


def _document(path: Path) -> dict[str, Any]:
    text = gzip.decompress(path.read_bytes()).decode("utf-8", "replace")
    found: dict[str, Any] = json.loads(text, strict=False)
    return found


if __name__ == "__main__":
    main()
