"""What the table of faults says of a graph, with the version of cuDNN that most were seen with."""

from __future__ import annotations

from cudnnlite.graph import faults
from cudnnlite.graph.data import GraphData

VERSION = 91900


def why_wrong(graph: GraphData, version: int = VERSION) -> str | None:
    """Return why a graph is refused, or None."""
    return faults.why_wrong(graph, version)


def why_engine_is_wrong(engine: int, graph: GraphData, version: int = VERSION) -> str | None:
    """Return why an engine is passed over, or None."""
    return faults.why_engine_is_wrong(engine, graph, version)
