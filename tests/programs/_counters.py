"""Import this to have what torch.compile did written to stderr as one JSON line at exit."""

import atexit
import json
import sys


def dynamo_counts():
    """Graphs, what they hold, breaks and recompilations of this process so far."""
    from torch._dynamo.utils import counters, get_compilation_metrics

    compilations = [str(metrics.compile_id) for metrics in get_compilation_metrics()]
    return {
        "graphs": counters["stats"].get("unique_graphs", 0),
        "calls_captured": counters["stats"].get("calls_captured", 0),
        "graph_breaks": sum(counters["graph_break"].values()),
        "recompilations": sum(not name.endswith("/0") for name in compilations),
    }


def write_counts():
    print("dynamo", json.dumps(dynamo_counts(), sort_keys=True), file=sys.stderr, flush=True)


atexit.register(write_counts)
