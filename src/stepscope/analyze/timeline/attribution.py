"""Where the device's work came from: operator, phase, module and source line of each event."""

import re
from dataclasses import dataclass
from typing import Final

import numpy as np

from stepscope.analyze.timeline.namematch import names_that
from stepscope.analyze.timeline.userframes import is_users_frame
from stepscope.record.rows import STEP_PHASES
from stepscope.record.timeline import NOTHING, Column, DeviceKind, HostKind, Timeline

DATA_WAIT, H2D, FORWARD, BACKWARD, OPTIMIZER, OTHER = range(len(STEP_PHASES))

_NODE: Final = "autograd::engine::evaluate_function"
# Names that only wrap others: never the operator a kernel is charged to.
_WRAPPERS: Final = (
    _NODE, "ProfilerStep", "Optimizer.", "enumerate(DataLoader)", "CompiledFunction",
    "Torch-Compiled Region", "## Call CompiledFxGraph", "TorchDynamo", "nccl:", "DataParallel",
    "DistributedDataParallel.forward",
)  # fmt: skip
_OPTIMIZES: Final = re.compile(
    r"Optimizer\.(step|zero_grad)#|aten::_(foreach|fused_(adam|sgd|adagrad))"
    r"|torch/optim/\w+\.py\(\d+\): step$"
)
_MODULE: Final = "nn.Module: "
_DEEPEST_MODULE: Final = 64


@dataclass(frozen=True, slots=True)
class Attribution:
    """One entry per device event; NOTHING where it is not known."""

    operator: Column  # int32, innermost operator, as an index into the host events
    top: Column  # int32, outermost operator
    phase: Column  # uint8, into STEP_PHASES
    module: Column  # int32, into `modules`
    line: Column  # int32, into Timeline.names: "file(line): function" of the user's own frame
    forward: Column  # int32, host event: of backward work, the forward operator it belongs to
    recomputed: Column  # bool, forward work done again inside backward (activation checkpointing)
    modules: list[str]  # paths of nested modules, outermost first, joined by dots


def nearest(parent: Column, marked: Column) -> Column:
    """For each event itself if marked, else its nearest marked ancestor, else NOTHING."""
    size = len(parent)
    # An extra entry at the end, which index -1 reaches, stands for "nothing above".
    above = np.full(size + 1, NOTHING, np.int32)
    if not marked.any():
        return above
    above[:size] = np.where(marked, np.arange(size, dtype=np.int32), parent)
    while True:
        higher = above[above]
        if np.array_equal(higher, above):
            return above
        above = higher


def is_operator(timeline: Timeline) -> Column:
    """For each host event whether it is an operator proper, not something that wraps others."""
    host = timeline.host
    wraps = names_that(timeline, host.name, lambda name: name.startswith(_WRAPPERS))
    proper: Column = (host.kind == HostKind.OPERATOR) & ~wraps
    return proper


def attribute(timeline: Timeline) -> Attribution:
    """Follow each device event's launch up to what caused it."""
    host = timeline.host
    origin = _origins(timeline)
    operators = is_operator(timeline)
    innermost = nearest(host.parent, operators)
    nodes = nearest(host.parent, names_that(timeline, host.name, lambda n: n.startswith(_NODE)))
    again = _starts_recomputation(timeline, operators, innermost, nodes)
    outermost = again | (operators & (innermost[host.parent] == NOTHING))
    node = nodes[origin]
    forward = _forward_operators(timeline, operators & (nodes[:-1] == NOTHING), node)
    module, modules = _module_paths(timeline, origin, node, forward)
    frames = (host.kind == HostKind.PYTHON) & names_that(timeline, host.name, is_users_frame)
    frame = _seen_from(nearest(host.parent, frames), origin, node, forward)
    operator = innermost[origin]
    top = nearest(host.parent, outermost)[origin]
    return Attribution(
        operator=operator,
        top=top,
        phase=_phases(timeline, origin, node, operator, module),
        module=module,
        line=np.append(host.name, np.int32(NOTHING))[frame],
        forward=forward,
        recomputed=np.append(again, False)[top],
        modules=modules,
    )


def _origins(timeline: Timeline) -> Column:
    """The host event each device event came from: its launch, else the operator it names."""
    host, device = timeline.host, timeline.device
    lost = np.flatnonzero((device.launch == NOTHING) & (device.external != NOTHING))
    known = np.flatnonzero((host.kind == HostKind.OPERATOR) & (host.external != NOTHING))
    if not (len(lost) and len(known)):
        return device.launch
    origin = device.launch.copy()
    origin[lost] = _last_with(host.external[known], known, device.external[lost])
    return origin


def _last_with(keys: Column, values: Column, wanted: Column) -> Column:
    """For each wanted key the value of its last occurrence, NOTHING where it does not occur."""
    if not len(keys):
        return np.full(len(wanted), NOTHING, np.int32)
    order = np.argsort(keys, kind="stable")
    at = np.searchsorted(keys[order], wanted, side="right") - 1
    found = (at >= 0) & (keys[order][at] == wanted)
    return np.where(found, values[order][at], NOTHING).astype(np.int32)


def _forward_operators(timeline: Timeline, eligible: Column, node: Column) -> Column:
    """The operator whose backward each autograd node is.

    Operators carry the number the next node will get, so of several with it the last made the node.
    Those run inside backward (recomputation) count on their own thread: left out.
    """
    sequence = timeline.host.sequence
    candidates = np.flatnonzero(eligible & (sequence != NOTHING))
    wanted = np.append(sequence, NOTHING)[node]
    found = _last_with(sequence[candidates], candidates, wanted)
    return np.where(wanted == NOTHING, np.int32(NOTHING), found)


def _starts_recomputation(
    timeline: Timeline, operators: Column, innermost: Column, nodes: Column
) -> Column:
    """For each host event whether it is called by an autograd node, yet records a graph itself.

    Backward runs without recording; what it computes again is recorded, and so has a number.
    """
    host = timeline.host
    sequence = np.append(host.sequence, NOTHING)
    inside: Column = operators & (nodes[:-1] != NOTHING) & (host.sequence != NOTHING)
    here = np.flatnonzero(inside)
    caller, node = innermost[host.parent[here]], sequence[nodes[here]]
    by_node = (caller != NOTHING) & (sequence[caller] == node) & (sequence[here] != node)
    inside[here] = by_node
    return inside


def _seen_from(above: Column, origin: Column, node: Column, forward: Column) -> Column:
    """What `above` says of each event: from inside backward if there, else of its forward."""
    own = above[origin]
    return np.where(own > node, own, np.where(node == NOTHING, own, above[forward]))


def _module_paths(
    timeline: Timeline, origin: Column, node: Column, forward: Column
) -> tuple[Column, list[str]]:
    host = timeline.host
    modules = names_that(timeline, host.name, lambda n: n.startswith(_MODULE))
    above = nearest(host.parent, modules & (host.kind == HostKind.PYTHON))
    parent = np.append(host.parent, np.int32(NOTHING))
    innermost, which = np.unique(_seen_from(above, origin, node, forward), return_inverse=True)
    chains = [innermost]
    while (chains[-1] != NOTHING).any() and len(chains) < _DEEPEST_MODULE:
        chains.append(above[parent[chains[-1]]])
    levels = np.append(host.name, np.int32(NOTHING))[np.stack(chains)]
    distinct, path = np.unique(levels, axis=1, return_inverse=True)
    texts = [
        ".".join(timeline.names[n].removeprefix(_MODULE) for n in chain[::-1] if n != NOTHING)
        for chain in distinct.T.tolist()
    ]
    paths = _whole_paths(texts)
    used = sorted(set(filter(None, paths.values())))
    number = {text: n for n, text in enumerate(used)}
    numbers = np.array([number.get(paths[text], NOTHING) for text in texts], np.int32)
    return numbers[path.ravel()][which.ravel()], used


def _whole_paths(paths: list[str]) -> dict[str, str]:
    """Recomputation inside backward starts in the middle of the model: the path that ends so."""
    wholes: dict[str, set[str]] = {}
    for path in paths:
        for at in (n for n, letter in enumerate(path) if letter == "."):
            wholes.setdefault(path[at + 1 :], set()).add(path)
    return {
        path: next(iter(wholes[path])) if len(wholes.get(path, ())) == 1 else path for path in paths
    }


def _phases(
    timeline: Timeline, origin: Column, node: Column, operator: Column, module: Column
) -> Column:
    host, device = timeline.host, timeline.device
    optimizes = nearest(host.parent, names_that(timeline, host.name, _OPTIMIZES.match))
    loads = names_that(timeline, host.name, lambda n: n.startswith("enumerate(DataLoader)"))
    waits = nearest(host.parent, loads)[origin] != NOTHING
    copies = device.kind == DeviceKind.COPY
    from_host = copies & names_that(timeline, device.name, lambda n: "htod" in n.lower())
    to_host = copies & names_that(timeline, device.name, lambda n: "dtoh" in n.lower())
    on_autograd = _autograd_events(timeline)[origin]
    return np.select(
        [from_host, optimizes[origin] != NOTHING, (node != NOTHING) | on_autograd, waits, to_host,
         (operator != NOTHING) | (module != NOTHING)],
        [H2D, OPTIMIZER, BACKWARD, DATA_WAIT, OTHER, FORWARD],
        OTHER,
    ).astype(np.uint8)  # fmt: skip


def _autograd_events(timeline: Timeline) -> Column:
    """For each host event (and for NOTHING, at the end) whether its thread only runs backward."""
    host, threads = timeline.host, timeline.threads
    size = len(threads)
    roots = (host.kind == HostKind.OPERATOR) & (host.parent == NOTHING)
    is_node = names_that(timeline, host.name, lambda n: n.startswith(_NODE))
    nodes = np.bincount(host.thread[roots & is_node], minlength=size)
    others = np.bincount(host.thread[roots & ~is_node], minlength=size)
    named = np.array(["pt_autograd" in thread.name for thread in threads], bool)
    return np.append(((nodes > others) | named)[host.thread], False)
