"""Batches from workers in fresh memory beside batches in memory that was used before (`recycle`).

python benchmarks/worker_memory.py [--device cpu|cuda] [--rounds N]
python benchmarks/worker_memory.py --table FILE.json
python benchmarks/worker_memory.py --starts               print what starting workers costs

One program, which takes batches from one worker and reads each once (on a GPU: pins it and copies
it there), by itself, observed, and observed with the fix, in turn. Told are the time from batch to
batch, the program's own processor time for one, and the worker's.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from _about import SOURCE, about

HERE = Path(__file__).resolve().parent
WAYS = {
    "by itself": [],
    "observed": ["-m", "stepscope.cli.main", "run", "--out"],
    "recycle": ["-m", "stepscope.cli.main", "run", "--fix", "recycle", "--out"],
}
MEGABYTES = (0.1, 0.5, 2.0, 8.0, 19.3)
BATCHES, WARM, SAMPLES = 200, 20, 32


def main() -> None:
    sys.path.insert(0, str(SOURCE))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path, metavar="FILE.json")
    parser.add_argument("--starts", action="store_true")
    parser.add_argument("--child", type=float, metavar="MEGABYTES", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print("told", json.dumps(child(options.child, options.device)))
        return
    if options.starts:
        print(starts(), end="")
        return
    if options.table:
        print(table(json.loads(options.table.read_text())), end="")
        return
    document = about("stepscope.worker-memory/1", "worker_memory.py", device=options.device)
    document["runs"] = [
        {"way": way, "mb": mb, **ran(way, mb, options.device)}
        for mb in MEGABYTES
        for _ in range(options.rounds)
        for way in WAYS
    ]
    out = options.out or HERE / "results" / f"worker-memory-{options.device}.json"
    out.write_text(json.dumps(document, indent=1) + "\n")
    print(table(document), end="")


def ran(way: str, mb: float, device: str) -> dict[str, float]:
    """One process of the program."""
    with tempfile.TemporaryDirectory() as place:
        before = [*WAYS[way], f"{place}/run"] if WAYS[way] else []
        command = [sys.executable, *before, __file__, "--child", str(mb), "--device", device]
        path = os.pathsep.join(filter(None, (str(SOURCE), os.environ.get("PYTHONPATH"))))
        done = subprocess.run(
            command, cwd=place, env={**os.environ, "PYTHONPATH": path}, text=True,
            capture_output=True, check=False,
        )  # fmt: skip
    told = [line for line in done.stdout.splitlines() if line.startswith("told ")]
    if done.returncode or not told:
        raise SystemExit(f"{way}, {mb} MB: {done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(told[0].removeprefix("told "))
    return found


def child(mb: float, device: str) -> dict[str, float]:
    """The program: ms of a batch."""
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Samples(Dataset):  # type: ignore[misc]
        def __init__(self) -> None:
            self.sample = torch.randn(int(mb * 1e6 / 4 / SAMPLES))

        def __len__(self) -> int:
            return SAMPLES * (BATCHES + WARM)

        def __getitem__(self, index: int) -> Any:
            return self.sample

    torch.set_num_threads(1)
    on_gpu = device == "cuda"
    wanted = Samples()
    batches = iter(DataLoader(wanted, SAMPLES, num_workers=1, pin_memory=on_gpu))
    began = busy = 0.0
    for number, batch in enumerate(batches):
        if number == WARM:
            began, busy = time.perf_counter(), time.process_time()
        moved = batch.to(device, non_blocking=True)
        total = moved.sum()
    assert torch.isclose(total.cpu(), SAMPLES * wanted.sample.sum(), rtol=1e-3, atol=1.0)
    wall, own = time.perf_counter() - began, time.process_time() - busy
    del batches
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    worker = (used.ru_utime + used.ru_stime) / (BATCHES + WARM)
    return {"ms": wall / BATCHES * 1e3, "own_ms": own / BATCHES * 1e3, "worker_ms": worker * 1e3}


def starts() -> str:
    """A forked worker's cost, as Markdown: processor ms by size of the program, and what a thread
    computes to fork it."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    torch.set_num_threads(1)
    model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(8)))
    optimizer = torch.optim.AdamW(model.parameters())
    lines, held = ["| workers | memory | forking one | all of one |", "|--:|--:|--:|--:|"], []

    def epoch(loader: Any) -> tuple[float, float]:
        forked, spent = time.process_time(), _spent()
        batches = iter(loader)
        forked = time.process_time() - forked
        for (batch,) in batches:
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()
        return forked, _spent() - spent

    for gigabytes in (0, 1):
        held.append(torch.ones(gigabytes * 2**28))
        data = TensorDataset(torch.randn(SAMPLES * WARM, 256))
        without = median(epoch(DataLoader(data, SAMPLES))[1] for _ in range(_EPOCHS))
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        memory = pages * os.sysconf("SC_PAGE_SIZE") / 1e9
        for count in (1, 2, 4, 8):
            kept = DataLoader(data, SAMPLES, num_workers=count, persistent_workers=True)
            epoch(kept)
            usual = median(epoch(kept)[1] for _ in range(_EPOCHS))  # without the workers' own time
            del kept
            found = [epoch(DataLoader(data, SAMPLES, num_workers=count)) for _ in range(_EPOCHS)]
            fork, whole = (1e3 * median(column) / count for column in zip(*found, strict=True))
            rest = 1e3 * min(without, usual) / count
            lines.append(f"| {count} | {memory:.2f} GB | {fork:.1f} ms | {whole - rest:.1f} ms |")
    return "\n".join(lines) + "\n"


_EPOCHS = 5


def _spent() -> float:
    """The processor time of this process and of those that it has ended."""
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in both)


def table(document: dict[str, Any]) -> str:
    """As Markdown: medians."""
    lines = [
        "| batch | "
        + " | ".join(f"{way}: from batch to batch, own, worker's" for way in WAYS)
        + " |",
        "|---|" + "--:|" * len(WAYS),
    ]
    for mb in MEGABYTES:
        cells = [
            " · ".join(f"{_median(document['runs'], way, mb, key):.2f}" for key in _TOLD)
            for way in WAYS
        ]
        lines.append(f"| {mb} MB | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


_TOLD = ("ms", "own_ms", "worker_ms")


def _median(runs: list[dict[str, Any]], way: str, mb: float, key: str) -> float:
    return median(float(run[key]) for run in runs if (run["way"], run["mb"]) == (way, mb))


if __name__ == "__main__":
    main()
