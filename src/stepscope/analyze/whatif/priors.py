"""Costs that no recording of the unchanged program contains, in nanoseconds unless named.

Seen on an H200 under CUDA 13; a prediction that rests on one says so.
"""

GRAPH_LAUNCH_NS = 12_000.0
"""The host's part of launching a CUDA graph."""
LAUNCH_NS = 6_000.0
"""The host's part of one launch from compiled code."""
FUSED_STEP_NS = 250_000.0
"""The host's part of a fused optimizer's step: gathering its tensors and a few launches."""
LATENCY_NS = 1_500.0
"""From the launching call's end until an idle device begins."""
BETWEEN_NS = 1_000.0
"""From the end of one piece of work until the next in its stream begins, both being queued."""
GRAPH_BETWEEN_NS = 600.0
"""The same inside a CUDA graph."""
RELEASE_NS = 6_000.0
"""From the end of the work waited for until the host goes on."""
HAND_OVER_MS = 0.3
"""What taking a batch from a worker costs the host."""
WORKER_MS_PER_MB = 0.9
"""What a worker needs more for a megabyte of a batch than the host would: fresh shared memory to
put it in, and a heap of its own. Seen on a virtual machine; others may be faster."""
HAND_OVER_MS_PER_MB = 0.35
"""What a megabyte of a worker's batch costs the host: mapping it, touching it first, unmapping."""
RECYCLED = 0.25
"""What is left of both where that memory was used before: benchmarks/worker_memory.py."""
PINNING_MS_PER_MB = 0.05
"""What a megabyte costs the thread that pins batches, besides taking it over: a copy."""
BARE_HOST = 0.45
"""Bare over recorded host time, where the clocks cannot tell for waiting at a full queue: between
0.35 and 0.55 in programs whose clocks could tell."""
MOST_HAND_OVER_MS = 1.0
"""What it costs at most: a longer wait for a batch is a wait for its worker."""
