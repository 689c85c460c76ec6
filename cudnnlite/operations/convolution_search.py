"""The two searches that cuDNN has for forward convolution: its v7 heuristic, and cudnnFind."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from cudnnlite.devices import arrays
from cudnnlite.devices.handle import Handle
from cudnnlite.enums import ConvolutionFwdAlgo
from cudnnlite.errors import ArgumentError, CudnnError, NotSupportedError
from cudnnlite.operations.convolution_problem import DEFAULT_CONV, ConvolutionProblem
from cudnnlite.operations.operands import check_writable, on_device, use, wait_for_streams
from cudnnlite.search.results import AlgorithmTable
from cudnnlite.specs import ConvolutionSpec


def get_convolution_forward(
    handle: Handle, x: Any, w: Any, conv: ConvolutionSpec = DEFAULT_CONV, *, out: Any = None
) -> AlgorithmTable:
    """Ask cuDNN's v7 heuristic for its ranking; nothing is run.

    Parameters
    ----------
    handle : Handle
        The device that it ranks for.
    x, w, conv, out
        As in `plan_convolution_forward`.

    Returns
    -------
    AlgorithmTable
        All algorithms, the preferred first, those that cuDNN refuses with their status last.

    Raises
    ------
    ArgumentError
        As in `plan_convolution_forward`.

    Notes
    -----
    C functions: `cudnnGetConvolutionForwardAlgorithm_v7`, `cudnnGetConvolutionForwardAlgorithmMaxCount`.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     x = handle.array(np.ones((1, 3, 8, 8), np.float32))
    ...     w = handle.array(np.ones((4, 3, 3, 3), np.float32))
    ...     ranked = dnn.get_convolution_forward(handle, x, w)
    ...     y = dnn.convolution_forward(handle, x, w, algorithm=ranked.best(workspace_limit=0))
    >>> print(ranked[0].status, ranked[0].time_ms)
    SUCCESS None
    """
    use(handle)
    problem = ConvolutionProblem(handle, x, w, conv, out)
    with ExitStack() as stack:
        try:
            problem.describe(stack)
            return problem.heuristic()
        except CudnnError as error:
            problem.involve(error)
            raise


def find_convolution_forward(
    handle: Handle,
    x: Any,
    w: Any,
    conv: ConvolutionSpec = DEFAULT_CONV,
    *,
    beta: float = 0.0,
    out: Any = None,
    workspace_limit: int | str | None = None,
) -> AlgorithmTable:
    """Let cuDNN run and time every algorithm on these arrays.

    Parameters
    ----------
    handle : Handle
        Waited for: the search synchronises.
    x, w : device arrays
        As in `convolution_forward`.
    conv : ConvolutionSpec
        As in `convolution_forward`.
    beta : float
        With beta = 0, `out` serves as the search's output and is overwritten.  Otherwise it is left alone, and scratch
        memory is used in its place.
    out : device array, optional
        What the result should look like; scratch memory of the dtype and layout of `x` if not given.
    workspace_limit : int or str, optional
        The most workspace that the search itself may use; the handle's limit if not given.  To see what a limit costs,
        search without one and give the limit to `AlgorithmTable.best`.

    Returns
    -------
    AlgorithmTable
        Every algorithm that cuDNN returned, the fastest first, the failed ones with their status last.  cuDNN's times
        contain tens to hundreds of microseconds of host overhead, so small problems are often misranked.

    Raises
    ------
    ArgumentError, ArrayTypeError, DeviceMemoryError
        As in `convolution_forward`.

    Notes
    -----
    C functions: `cudnnFindConvolutionForwardAlgorithmEx`, `cudnnGetConvolutionForwardAlgorithmMaxCount`, and, for the size of
    the search's own workspace, `cudnnGetConvolutionForwardWorkspaceSize`.  Plain `cudnnFind...`, which allocates behind the
    caller's back, is never used.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     x = handle.array(np.ones((1, 3, 8, 8), np.float32))
    ...     w = handle.array(np.ones((4, 3, 3, 3), np.float32))
    ...     found = dnn.find_convolution_forward(handle, x, w)
    ...     best = found.best(workspace_limit="1 MiB", deterministic=True)
    ...     y = dnn.convolution_forward(handle, x, w, algorithm=best)
    >>> print(best.time_ms > 0, best.deterministic, best.workspace <= 2**20)
    True True True
    """
    use(handle)
    x, w = on_device(handle, x, "x"), on_device(handle, w, "w")
    y = None if out is None else on_device(handle, out, "out")
    problem = ConvolutionProblem(handle, x, w, conv, y)
    if y is not None:
        check_writable(y, "out", x=x, w=w)
    if problem.y.size == 0:
        raise ArgumentError(f"x={x.spec} is an empty batch; there is nothing to time")
    limit = handle.workspace.limit_for(workspace_limit)
    stream = handle.stream
    with ExitStack() as stack:
        try:
            problem.describe(stack)
            results, count, room = problem.result_array()
            if y is None or beta != 0:
                y = arrays.empty(handle.device, stream, problem.y)
            size = _search_workspace(problem, limit)
            scratch = handle.device.allocate(size, stream)
            stack.callback(scratch.close, stream)
            api, (native, *descriptors) = handle.api, problem.pointers
            x_desc, w_desc, conv_desc, y_desc = descriptors
            for other in wait_for_streams(stream, x, w, y):
                stack.callback(other.wait, stream)
            api.cudnnFindConvolutionForwardAlgorithmEx(
                native, x_desc, x.ptr, w_desc, w.ptr, conv_desc, y_desc, y.ptr, room, count, results,
                int(scratch.handle), size,
            )  # fmt: skip
        except CudnnError as error:
            problem.involve(error)
            raise
        return problem.table(results, count.value, f"cudnnFind on {handle.device}", size)


def _search_workspace(problem: ConvolutionProblem, limit: int | None) -> int:
    """Return the workspace that lets every algorithm run which fits the limit and, with a margin, the free memory."""
    free = problem.handle.device.memory_info()[0] // 2
    most = free if limit is None else min(limit, free)
    sizes = [0]
    for algorithm in ConvolutionFwdAlgo:
        if algorithm != ConvolutionFwdAlgo.COUNT:
            try:
                sizes.append(problem.workspace(algorithm))
            except NotSupportedError:  # the search will say so too
                continue
    return max(size for size in sizes if size <= most)
