"""Hints for a graph without an engine: cuDNN is asked about graphs that differ by one change."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from itertools import islice

from cudnnlite._raw.enums import BackendHeurMode
from cudnnlite.devices.device import Device
from cudnnlite.devices.handle import Handle
from cudnnlite.errors import CudnnliteError
from cudnnlite.graph.data import GraphData
from cudnnlite.graph.engines import Configuration, configurations
from cudnnlite.graph.faults import why_wrong
from cudnnlite.graph.lowering import lower
from cudnnlite.graph.nearest import changes, descriptor_call

_MOST_QUESTIONS = 24  # a question takes up to 10 ms on a GPU

IsAllowed = Callable[[Configuration, GraphData], bool]


def none_named(device: Device) -> str:
    """Return the message that cuDNN has no engine, or the emulated device, which has fewer."""
    if device.kind == "emulated":
        return "the emulated device has no engine"
    return "cuDNN's heuristics name no engine"


def hints(
    handle: Handle, graph: GraphData, modes: tuple[BackendHeurMode, ...], is_allowed: IsAllowed
) -> list[str]:
    """Return hints: the nearest graph that is served, and the descriptor call for this one.

    Parameters
    ----------
    handle : Handle
        The handle whose device is asked.
    graph : GraphData
        The graph for which no engine is named.
    modes : tuple of BackendHeurMode
        The modes of the heuristics that are tried.
    is_allowed : callable
        Whether an engine meets the requirements.
    """
    lines = []
    for change in islice(changes(graph), _MOST_QUESTIONS):
        if _is_served(handle, change.graph, modes, is_allowed):
            lines.append(f"served {change.description}")
            break
    call = descriptor_call(graph)
    if call is not None:
        lines.append(f"dnn.{call} is the descriptor call")
    return lines


def _is_served(
    handle: Handle, graph: GraphData, modes: tuple[BackendHeurMode, ...], is_allowed: IsAllowed
) -> bool:
    """Return whether the heuristics name an allowed engine; False if the graph is malformed."""
    if why_wrong(graph, handle.api.engine_version) is not None:
        return False
    with ExitStack() as stack:
        try:
            native = lower(graph, handle, stack)
            return any(
                is_allowed(configuration, graph)
                for configuration in configurations(native, modes, stack)
            )
        except CudnnliteError:
            return False
