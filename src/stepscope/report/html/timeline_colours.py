"""Which of the page's colours each category of the timeline has."""

_COLOURS = {
    "operator": 1,
    "annotation": 8,
    "Python": 3,
    "runtime call": 2,
    "profiler": 5,
    "convolution": 1,
    "matmul": 1,
    "attention": 7,
    "recurrent": 1,
    "normalisation": 3,
    "pointwise": 6,
    "reduction": 3,
    "softmax": 7,
    "loss": 5,
    "pooling": 3,
    "optimizer": 6,
    "copy": 4,
    "layout change": 4,
    "set": 4,
    "communication": 5,
    "compiled": 6,
    "step": 8,
    "idle: loader": 2,
    "idle: host": 5,
    "idle: synchronisation": 7,
    "idle: copy": 4,
    "idle: other ranks": 3,
    "phase: data wait": 2,
    "phase: copy": 4,
    "phase: forward": 1,
    "phase: backward": 3,
    "phase: optimizer": 6,
}
_OTHER = 8


def colours(categories: list[str]) -> list[tuple[str, int]]:
    """Each category with the number of its `--series-` colour."""
    return [(name, _COLOURS.get(name, _OTHER)) for name in categories]
