"""The questions to the process that plans, and its answers."""

from __future__ import annotations

from typing import NamedTuple

from cudnnlite.enums import MathType
from cudnnlite.graph.data import GraphData
from cudnnlite.types import Engine


class Question(NamedTuple):
    """Which engines cuDNN has for a graph on a GPU.

    Attributes
    ----------
    graph : GraphData
        The graph.
    properties : str
        The GPU, as cuDNN's JSON.
    math_type : MathType
        The conversion that engines may apply to the operands of the graph's products.
    every : bool
        Whether the plans of all engines are finalised, or those up to the first that is served.
    """

    graph: GraphData
    properties: str
    math_type: MathType
    every: bool


class Candidate(NamedTuple):
    """An engine that cuDNN's heuristics name for a graph on a GPU.

    Attributes
    ----------
    engine : Engine
        The engine and its knobs.
    notes : tuple of str
        cuDNN's notes on it, "TENSOR_CORE", "RUNTIME_COMPILATION", ...
    compiled : bool
        Whether cuDNN compiles it at run time.
    deterministic : bool
        Whether two runs give the same bits.
    why_not : str
        Why it does not serve: cuDNN refuses it, or cudnnlite never uses it; empty otherwise.
    workspace : int or None
        Bytes that a call needs; None if no plan was finalised.
    seconds : float or None
        The time in which this machine finalised the plan; None if no plan was finalised.
    kernels : tuple of str
        The names of the kernels that cuDNN compiled.
    """

    engine: Engine
    notes: tuple[str, ...]
    compiled: bool
    deterministic: bool
    why_not: str = ""
    workspace: int | None = None
    seconds: float | None = None
    kernels: tuple[str, ...] = ()

    @property
    def served(self) -> bool:
        """Whether cuDNN finalised a plan of it."""
        return self.workspace is not None


class Answer(NamedTuple):
    """The engines for a graph, the preferred first, or why cuDNN has none."""

    rows: tuple[Candidate, ...]
    why_not: str = ""
