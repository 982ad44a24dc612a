"""What readers of traces mend and leave out: keys of `Quality.repaired` and `.dropped`."""

from enum import StrEnum


class Repair(StrEnum):
    """What was mended in an event."""

    NUMBER_AS_TEXT = "number written as text"
    NUMBER_TOO_LARGE = "number beyond 64 bits left out"
    BAD_UTF8 = "bad UTF-8 in a text"
    CONTROL_CHARACTER = "control character in a text"
    NO_DURATION = "missing duration taken as zero"
    BAD_DURATION = "negative or absurd duration taken as zero"
    OPEN_RANGE = "open ranges closed at the end"


class Drop(StrEnum):
    """Why an event was left out."""

    BAD_JSON = "not valid JSON"
    NO_EVENT = "not an event"
    NO_TIME = "without a usable time"
    ZERO_TIME = "time of zero or less, far from all others"
    UNPAIRED = "begin without end, or end without begin"
