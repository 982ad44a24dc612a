"""A batch-size search on a terminal."""

from typing import IO, Any

from stepscope.batch.document import Batch, read_batch
from stepscope.report.render.terminal.story import print_story
from stepscope.report.story.batch import batch_story


def print_batch(batch: Batch | dict[str, Any], stream: IO[str]) -> None:
    """The screen `stepscope batch` ends with."""
    print_story(batch_story(read_batch(batch)), stream)
