"""The studies of a benchmark: the CPU against the GPU, and what saves memory."""

from typing import Any

from stepscope.report import bench_study_cpu_gpu, bench_study_memory
from stepscope.report.story.bench_study_cpu_gpu import cpu_gpu_sections
from stepscope.report.story.bench_study_memory import memory_sections
from stepscope.report.story.blocks import Say, Section

Document = dict[str, Any]
_WORDS = {"cpu-gpu": bench_study_cpu_gpu, "memory": bench_study_memory}
_SECTIONS = {"cpu-gpu": cpu_gpu_sections, "memory": memory_sections}
_NAMES = {"cpu-gpu": "CPU against GPU", "memory": "memory"}


def study_title(study: Document) -> str:
    """`unet: CPU against GPU, batch 16`."""
    fixes = f", with {','.join(study['fixes'])}" if study.get("fixes") else ""
    return f"{study['model']}: {_NAMES[study['name']]}, batch {study['batch']:,}{fixes}"


def study_verdict(study: Document) -> str:
    """The first of its answers."""
    return _sentence(next(iter(_WORDS[study["name"]].answers(study)), "nothing was measured"))


def study_sections(study: Document) -> list[Section]:
    """The answers first."""
    told = [_sentence(words) for words in _WORDS[study["name"]].answers(study)]
    told += [str(note) for note in study["notes"]]
    summary = Section("summary", "At a glance", tuple(map(Say, told)))
    return [summary, *_SECTIONS[study["name"]](study)]


def _sentence(words: str) -> str:
    """With a capital, unless a technique's name comes first."""
    first = words.partition(" ")[0]
    return f"{words if first.endswith(':') else words[:1].upper() + words[1:]}."
