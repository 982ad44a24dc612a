"""What is said of a run, wherever it is shown. Strangers' text is as it came."""

from typing import Any

from stepscope.report.text import milliseconds, plural, size

Document = dict[str, Any]


def ending(document: Document) -> list[str]:
    """How a run that did not end well ended, or that it still runs; nothing where all is well."""
    run = document["run"]
    if run["exit_code"] is None:
        word = "still running" if run["under_way"] else "not finished: its observer was killed"
        return [f"{word}; what follows is what is known so far"]
    if run["out_of_memory"] is not None:
        return _out_of_memory(document, run["out_of_memory"])
    if run.get("timed_out"):
        return ["ended at its --timeout (exit code 124)"]
    if run.get("signal"):
        return [f"ended by signal {run['signal']} (exit code {run['exit_code']})"]
    if run["error"] is not None and run["exit_code"]:
        first = str(run["error"]["text"]).strip().split("\n")[0][:120]
        return [f"raised {run['error']['type']}: {first}"]
    return [f"exit code {run['exit_code']}"] if run["exit_code"] else []


def _out_of_memory(document: Document, memory: Document) -> list[str]:
    owners = document["memory"]["owners"]
    named = sorted(((v, k) for k, v in owners.items() if v), reverse=True)[:3]
    largest = ", ".join(f"{name.replace('_', ' ')} {size(value)}" for value, name in named)
    place = "GPU memory" if memory["device"] == "cuda" else "memory"
    asked = memory.get("requested_bytes")
    text = f"out of {place}" + (f": {size(asked)} more were asked for" if asked else "")
    return [text, f"largest owners: {largest}"] if largest else [text]


def fix_state(fix: Document) -> str:
    """What became of a fix that was asked for."""
    value = f"={fix['value']}" if fix["value"] is not None else ""
    good = fix["state"] == "applied"
    words = fix["where"] if good else fix["reasons"]
    more = f" and {len(words) - 1} more" if len(words) > 1 else ""
    text = f"{words[0]}{more}" + (f" · {fix['kind']}" if good else "")
    word = {"applied": "with", "broke": "broke with"}.get(fix["state"], "without")
    return f"{word} {fix['name']}{value}: {text}"


def remarks(document: Document) -> list[str]:
    """Spikes, drift, throttling, company on the GPU."""
    steps, gpu = document["steps"], document["gpu"]
    found = []
    spikes = steps["spikes"]
    if spikes:
        found.append(
            f"{plural(steps['spike_count'], 'spike')}: step {spikes[0]['step']:,} took"
            f" {milliseconds(spikes[0]['ms'])} ms"
        )
    if steps["drift"] and abs(steps["drift"]) > 0.05:
        word = "slower" if steps["drift"] > 0 else "faster"
        found.append(f"steps got {abs(steps['drift']):.0%} {word} over the run")
    if gpu and gpu["throttled_by"]:
        found.append(f"the GPU was throttled: {', '.join(gpu['throttled_by'])}")
    if gpu and gpu["other_processes"]:
        found.append("another process used the GPU")
    return found


def noun(document: Document) -> str:
    """What a step of this run is: `step`, `model call`, `batch`."""
    return {"inference": "model call", "batches": "batch"}.get(document["steps"]["what"], "step")


def counted(document: Document) -> str:
    """`412 steps`, `80 model calls`, `12 steps (inferred)`."""
    steps, word = document["steps"], noun(document)
    count = plural(steps["count"], word).replace("batchs", "batches")
    return count + (" (inferred)" if steps["inferred"] and word == "step" else "")
