"""The names of the kernels that a function enqueues, read from a CUDA graph of its work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cudnnlite.errors import CaptureError, CudnnError


def kernel_names_of(work: Callable[[], object], stream: int, driver: Any) -> tuple[str, ...] | None:
    """Record what `work` enqueues on a stream, and return the names of its kernels in order.

    None if cuDNN or CUDA refuses the recording.  Nothing runs.  `driver` is `cuda.bindings.driver`.
    """
    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    (error,) = driver.cuStreamBeginCapture(stream, mode)
    if error:
        return None
    is_recorded = True
    try:
        work()
    except (CudnnError, CaptureError):
        is_recorded = False
    finally:
        error, graph = driver.cuStreamEndCapture(stream)
    if error:
        return None
    try:
        return _names_in(graph, driver) if is_recorded else None
    finally:
        driver.cuGraphDestroy(graph)


def _names_in(graph: Any, driver: Any) -> tuple[str, ...]:
    """Return the names of the kernels of a graph, those of graphs inside it included."""
    kinds = driver.CUgraphNodeType
    _, _, count = _checked(driver.cuGraphGetNodes(graph))
    _, nodes, _ = _checked(driver.cuGraphGetNodes(graph, count))
    names: list[str] = []
    for node in nodes[:count]:
        _, kind = _checked(driver.cuGraphNodeGetType(node))
        if kind == kinds.CU_GRAPH_NODE_TYPE_KERNEL:
            _, parameters = _checked(driver.cuGraphKernelNodeGetParams(node))
            names.append(_name_of(parameters, driver))
        elif kind == kinds.CU_GRAPH_NODE_TYPE_GRAPH:
            _, child = _checked(driver.cuGraphChildGraphNodeGetGraph(node))
            names += _names_in(child, driver)
    return tuple(names)


def _name_of(parameters: Any, driver: Any) -> str:
    """Return the name of a kernel node's function, or of its kernel if it has no function."""
    if int(parameters.func):
        error, name = driver.cuFuncGetName(parameters.func)
    else:
        error, name = driver.cuKernelGetName(parameters.kern)
    if error or not name:
        return "a kernel without a name"
    return str(name.decode(errors="replace"))


def _checked(result: tuple[Any, ...]) -> tuple[Any, ...]:
    if result[0]:
        raise RuntimeError(f"a CUDA graph cannot be read: {result[0]}")
    return result
