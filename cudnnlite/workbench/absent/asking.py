"""`candidates`: which engines cuDNN has for problems on a GPU that is absent."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, overload

from cudnnlite.arguments import sequence, shown
from cudnnlite.enums import MathType
from cudnnlite.errors import ArgumentError
from cudnnlite.graph.data import GraphData
from cudnnlite.graph.problem import GraphProblem
from cudnnlite.operations.convolution.engines import why_no_engine
from cudnnlite.operations.convolution.graphs import data_of
from cudnnlite.operations.layers.pooling_plan import pooling_graph, pools_by_graph
from cudnnlite.types import DeviceProperties, Problem
from cudnnlite.workbench.absent.candidates import DEFAULT_TIMEOUT, Candidates, Subject, ask_about


@overload
def candidates(
    problems: Problem | GraphData,
    properties: DeviceProperties | str | os.PathLike[str] | Any,
    *,
    every: bool = False,
    cudnn: str | os.PathLike[str] | None = None,
    timeout: float = DEFAULT_TIMEOUT,
) -> Candidates: ...
@overload
def candidates(
    problems: Iterable[Problem | GraphData],
    properties: DeviceProperties | str | os.PathLike[str] | Any,
    *,
    every: bool = False,
    cudnn: str | os.PathLike[str] | None = None,
    timeout: float = DEFAULT_TIMEOUT,
) -> list[Candidates]: ...
def candidates(
    problems: Problem | GraphData | Iterable[Problem | GraphData],
    properties: DeviceProperties | str | os.PathLike[str] | Any,
    *,
    every: bool = False,
    cudnn: str | os.PathLike[str] | None = None,
    timeout: float = DEFAULT_TIMEOUT,
) -> Candidates | list[Candidates]:
    """Return the engines that cuDNN has for problems on a GPU, without the GPU.

    cuDNN is asked in a process of its own, which has a small library in place of the driver's: it
    needs neither a GPU nor a driver, and this process survives whatever cuDNN does there.  The
    library is compiled at the first use, by the C compiler, and kept in the user's cache folder.

    Parameters
    ----------
    problems : Problem, Graph, or iterable of them
        What is to be computed; several are asked in one process.
    properties : DeviceProperties, str, path or Handle
        The GPU: its properties, the name of a common card ("a100", "h200", "b200", "rtx4090"), the
        path of a file that `DeviceProperties.save` wrote, or a handle of it.
    every : bool
        Whether every engine's plan is finalised, which compiles most of them.  If not, engines are
        finalised in cuDNN's order up to the first that is served.
    cudnn : path, optional
        Another libcudnn: its file or folder.
    timeout : float
        The most seconds for one problem.  A problem that takes longer is not served.

    Returns
    -------
    Candidates or list of Candidates
        For each problem its engines, the preferred first, and whether one is served, or why not.

    Raises
    ------
    ArgumentError
        A problem that has no graph, as that of a recurrent network, or another argument that is not
        allowed; the message names it.
    LibraryError
        There is no C compiler or no libcudnn, or libcudnn is older than 9.8.

    Notes
    -----
    C functions, in the other process: those of a `BackendDescriptor`.  cuDNN knows the
    architecture, not the card: which kernels there are and that they compile, but no times.
    """
    is_single = isinstance(problems, (Problem, GraphData))
    if isinstance(problems, (Problem, GraphData)):
        items: tuple[Any, ...] = (problems,)
    else:
        items = sequence(problems, "problems", "an iterable of problems and graphs")
    subjects = [subject_of(item) for item in items]
    answers = ask_about(subjects, properties, every=every, cudnn=cudnn, timeout=timeout)
    return answers[0] if is_single else answers


def why_not_asked(problem: Problem | GraphData) -> str:
    """Return why cuDNN cannot be asked about a problem without a GPU; empty if it can."""
    if isinstance(problem, (GraphData, GraphProblem)) or pools_by_graph(problem):
        return ""
    return why_no_engine(problem)


def subject_of(problem: Any) -> Subject:
    """Return the subject of a question about a problem; ArgumentError if none can be asked."""
    if isinstance(problem, GraphData):
        return Subject(problem, MathType.DEFAULT, repr(problem))
    if not isinstance(problem, Problem):
        raise ArgumentError(f"problems has {shown(problem)}; needed: problems and graphs")
    if isinstance(problem, GraphProblem):
        return Subject(problem.graph, problem.math_type, str(problem))
    if pools_by_graph(problem):
        return Subject(pooling_graph(problem), MathType.DEFAULT, str(problem))
    if reason := why_no_engine(problem):
        raise ArgumentError(f"{problem}: only a GPU can be asked about it ({reason})")
    return Subject(data_of(problem), problem.math_type, str(problem))
