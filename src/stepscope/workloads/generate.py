"""Generate tokens with a decoder, greedily, after random prompts.

python -m stepscope.workloads.generate --model gpt:tiny --prompt 32 --new-tokens 64
python -m stepscope.workloads.generate --model gpt --device cuda --batch 8 --measure result.json
"""

import sys
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from stepscope.workloads.arguments import ProgramArguments
from stepscope.workloads.measure.arithmetic import fastest_arithmetic
from stepscope.workloads.measure.clock import HostClock, UntimedClock, clock_for
from stepscope.workloads.measure.inputs import build_for_mode, describe_workload
from stepscope.workloads.measure.meter import Meter, WarmupRule, section_limits
from stepscope.workloads.measure.program import peak_memory, run_program
from stepscope.workloads.measure.record import GenerateMeasured

_LEAST = 3  # generations, of many calls each


def generate(asked: ProgramArguments, measured: GenerateMeasured, device: torch.device) -> None:
    prompt, new_tokens = asked.prompt, asked.new_tokens
    built = build_for_mode("generate", asked, prompt + new_tokens)
    batch = asked.batch or built.workload.batch
    describe_workload(built, asked, batch, measured, device)
    model = built.model.to(device).eval()
    drawn = torch.Generator().manual_seed(asked.seed)
    words = built.workload.vocabulary
    prompts = torch.randint(words, (batch, prompt), generator=drawn).to(device)
    if device.type == "cuda":
        import_module("torch._dynamo")  # only this marks the cache as never moving
    cache = model.generate_cache(batch, prompt + new_tokens)

    limits = section_limits(asked, _LEAST)
    timed = asked.measure is not None
    inside, clock = clock_for(device), clock_for(device) if timed else UntimedClock(device)
    meter = Meter(clock, limits, WarmupRule(least_calls=_LEAST) if timed else None)

    meter.begin()
    while meter.going:
        one_generation(model, prompts, cache, new_tokens, inside)
        meter.call(batch)
    meter.end()
    rate = meter.samples * new_tokens / meter.section_s
    print(f"{rate:,.1f} tokens/s", flush=True)
    if not timed:
        return
    times_s = inside.take()[-2 * meter.calls :]
    meter.fill(measured)
    measured.peak_memory_bytes, measured.reserved_memory_bytes = peak_memory(device)
    measured.prompt, measured.new_tokens, measured.tokens_per_s = prompt, new_tokens, rate
    measured.first_token_ms = [1e3 * seconds for seconds in times_s[::2]]
    if new_tokens > 1:
        measured.token_ms = [1e3 * seconds / (new_tokens - 1) for seconds in times_s[1::2]]
    measured.arithmetic = fastest_arithmetic(model, device, prompts, cache)


@torch.inference_mode()  # type: ignore[untyped-decorator]
def one_generation(
    model: Any, prompts: Tensor, cache: Any, new_tokens: int, clock: HostClock
) -> Tensor:
    """The likeliest tokens [N, new_tokens]; waits for the first and the last one."""
    clock.begin()
    logits, cache = model.prefill(prompts, cache)
    token = logits.argmax(-1, keepdim=True)
    clock.mark()
    clock.wait()
    tokens = [token]
    for _ in range(new_tokens - 1):
        token = model.decode(token, cache).argmax(-1, keepdim=True)
        tokens.append(token)
    clock.mark()
    clock.wait()
    return torch.cat(tokens, dim=1)


if __name__ == "__main__":
    sys.exit(run_program("generate", __doc__, generate))
