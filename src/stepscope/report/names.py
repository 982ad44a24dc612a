"""The words for what documents name by key: phases of a step, parts of a run, device time."""

PHASES = {
    "data_wait": "data wait",
    "h2d": "copy",
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "other": "other",
}
ACCOUNT = {
    "startup": "Python start",
    "epoch_start": "epoch starts",
    "checkpoint": "checkpoints",
    "warmup": "warm-up",
    "window": "recording",
}
"""What is not here is called by its key."""
WORK = {
    "compute": "computing",
    "exposed_communication": "communicating",
    "exposed_copy": "copying",
}
"""What a device does, beside being idle."""
STEPS_HOW = {
    "ProfilerStep": "marked by the profiler",
    "annotation": "from annotations",
    "optimizer": "from optimizer steps",
    "whole": "",
}
"""How the steps of a recording were found."""
