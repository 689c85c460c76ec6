"""Forward convolution: one line, a plan for many calls, and the two searches that cuDNN has."""

from __future__ import annotations

import ctypes
from contextlib import ExitStack
from threading import get_ident
from typing import Any

from cudnnlite import arrays
from cudnnlite._raw.prepared import PreparedCall
from cudnnlite._raw.types import cudnnConvolutionFwdAlgoPerf_t
from cudnnlite.arrays import DeviceArray
from cudnnlite.descriptors import ConvolutionDescriptor, FilterDescriptor, TensorDescriptor, check_describable
from cudnnlite.enums import ConvolutionFwdAlgo, Determinism, MathType, Status, parse_enum
from cudnnlite.errors import ArgumentError, CudnnError, NotSupportedError, WorkspaceLimitError, WorkspaceLimitWarning
from cudnnlite.handle import Handle
from cudnnlite.ops.operands import (
    HostScalars,
    check_overlap,
    check_shape,
    check_workspace,
    check_writable,
    on_device,
    tensor_spec,
    wait_for_streams,
)
from cudnnlite.plans import Plan, cached_plan
from cudnnlite.results import AlgorithmResult, AlgorithmTable
from cudnnlite.sizes import format_size
from cudnnlite.specs import ConvolutionSpec, FilterSpec, TensorSpec
from cudnnlite.warn import warn_user

_DEFAULT_CONV = ConvolutionSpec()


class _Problem:
    """The specs of a forward convolution and, inside `with`, their descriptors."""

    def __init__(self, handle: Handle, x: Any, w: Any, conv: ConvolutionSpec, y: Any = None) -> None:
        if not isinstance(conv, ConvolutionSpec):
            raise ArgumentError(f"conv={conv!r} is not a ConvolutionSpec")
        self.handle = handle
        self.x = tensor_spec(x, "x")
        self.w = _filter_spec(w, self.x)
        self.conv = conv.replace(compute_type=conv.compute_type_for(self.x))
        expected = conv.output_spec(self.x, self.w)
        self.y = expected if y is None else tensor_spec(y, "out")
        check_shape(self.y, expected)
        if self.y.overlaps_itself:
            raise ArgumentError(f"out={self.y}: its values overlap each other in memory")

    def describe(self, stack: ExitStack) -> None:
        """Make the descriptors; `stack` owns them."""
        for argument, spec in (("x", self.x), ("w", self.w), ("out", self.y)):
            check_describable(spec, argument)
        self.x_desc = stack.enter_context(TensorDescriptor(self.x))
        self.w_desc = stack.enter_context(FilterDescriptor(self.w))
        self.conv_desc = stack.enter_context(ConvolutionDescriptor(self.conv, spatial_rank=self.x.rank - 2))
        self.y_desc = stack.enter_context(TensorDescriptor(self.y))

    @property
    def pointers(self) -> tuple[Any, Any, Any, Any, Any]:
        """Handle and descriptors in the order of cuDNN's queries."""
        return self.handle.ptr, self.x_desc.ptr, self.w_desc.ptr, self.conv_desc.ptr, self.y_desc.ptr

    def workspace(self, algorithm: ConvolutionFwdAlgo) -> int:
        """Return the bytes of workspace that the algorithm needs with the descriptor's present math type."""
        size = ctypes.c_size_t()
        self.handle.api.cudnnGetConvolutionForwardWorkspaceSize(*self.pointers, algorithm, size)
        return size.value

    def involve(self, error: CudnnError) -> None:
        """Add the specs to an error's message."""
        error.involving(x=self.x, w=self.w, conv=self.conv, y=self.y)

    def table(self, results: Any, count: int, timing: str) -> AlgorithmTable:
        """Turn cuDNN's result structs into a table."""
        rows = [
            AlgorithmResult(
                ConvolutionFwdAlgo(result.algo),
                MathType(result.mathType),
                Status(result.status),
                result.time if result.time >= 0 else None,
                result.memory,
                result.determinism == Determinism.DETERMINISTIC,
            )
            for result in results[:count]
        ]
        device = self.handle.device
        title = f"convolution forward of {self.x} by {self.w}, {self.conv}"
        return AlgorithmTable(rows, title=title, timing=timing, device_memory=device.memory_info()[1])

    def result_array(self) -> tuple[Any, ctypes.c_int, int]:
        """Return room for all results, for their number, and how many there may be."""
        room = ctypes.c_int()
        self.handle.api.cudnnGetConvolutionForwardAlgorithmMaxCount(self.handle.ptr, room)
        return (cudnnConvolutionFwdAlgoPerf_t * room.value)(), ctypes.c_int(), room.value

    def heuristic(self) -> AlgorithmTable:
        """Ask the v7 heuristic."""
        results, count, room = self.result_array()
        self.handle.api.cudnnGetConvolutionForwardAlgorithm_v7(*self.pointers, room, count, results)
        return self.table(results, count.value, f"none, ranked by cuDNN's heuristic on {self.handle.device}")


class ConvolutionForwardPlan(Plan):
    """A forward convolution made once and called many times: `plan(x, w, out=y)`.  See `plan_convolution_forward`.

    Attributes
    ----------
    x, w, conv, y : specs
        What it was made for.
    choice : AlgorithmResult
        Algorithm, math type and workspace that each call uses, with what was passed over.
    workspace : int
        Bytes that each call needs.
    """

    def __init__(
        self,
        handle: Handle,
        problem: _Problem,
        algorithm: AlgorithmResult | ConvolutionFwdAlgo | None,
        workspace_limit: int | None,
        alpha: float,
        beta: float,
    ) -> None:
        scalars = HostScalars(alpha, beta, problem.conv.compute_type_for(problem.x))
        super().__init__(handle, f"ConvolutionForwardPlan of {problem.x} by {problem.w}, {problem.conv}")
        self.x, self.w, self.conv, self.y = problem.x, problem.w, problem.conv, problem.y
        self._problem = problem
        self._scalars = scalars
        # the specs that were compared last: the same objects need not be compared again
        self._x_seen: TensorSpec = problem.x
        self._w_seen: TensorSpec | None = None
        self._y_seen: TensorSpec = problem.y
        # what the last call was given: the addresses of x, w and y, found not to overlap, and of the workspace
        self._pointers, self._scratch = (0, 0, 0), 0
        self._prepared: PreparedCall | None = None
        self.choice: AlgorithmResult | None = None
        self.workspace = 0
        if problem.y.size == 0:  # an empty batch: nothing to describe, nothing to call
            return
        try:
            problem.describe(self._resources)
            self._choose(algorithm, workspace_limit)
        except BaseException as error:
            if isinstance(error, CudnnError):
                problem.involve(error)
            self.close()
            raise

    def _choose(self, algorithm: AlgorithmResult | ConvolutionFwdAlgo | None, limit: int | None) -> None:
        problem = self._problem
        if algorithm is None:
            choice = problem.heuristic().best(limit)
            self._tell_passed_over(choice, limit)
        elif isinstance(algorithm, AlgorithmResult):
            choice = algorithm
        else:
            choice = AlgorithmResult(algorithm, problem.conv.math_type)
        # a result is applied as one: its math type first, then the workspace is asked again
        problem.conv_desc.set_math_type(choice.math_type)
        kind = ConvolutionFwdAlgo(choice.algorithm)
        self.workspace = problem.workspace(kind)
        if limit is not None and self.workspace > limit:
            raise WorkspaceLimitError(
                f"{kind} needs a workspace of {format_size(self.workspace)}; the limit is {format_size(limit)}"
            )
        self.choice = choice
        scalars = self._scalars
        handle, x, w, conv, y = problem.pointers
        self._prepared = self._handle.api.prepare(
            "cudnnConvolutionForward", handle, scalars.alpha_pointer, x, 0, w, 0, conv, kind, 0, self.workspace,
            scalars.beta_pointer, y, 0,
        )  # fmt: skip

    def _tell_passed_over(self, choice: AlgorithmResult, limit: int | None) -> None:
        excluded = [other for other, _ in choice.passed_over if other.ok]
        if excluded and limit is not None:
            listed = ", ".join(f"{row.algorithm} ({format_size(row.workspace)})" for row in excluded)
            warn_user(
                f"the workspace limit of {format_size(limit)} excluded {listed}, which cuDNN's heuristic prefers to "
                f"{choice.algorithm}; find_convolution_forward measures what that costs",
                WorkspaceLimitWarning,
            )

    def __call__(self, x: Any, w: Any, *, out: Any = None, workspace: Any = None) -> DeviceArray:
        """Enqueue y = alpha * conv(x, w) + beta * y on the handle's stream.

        Parameters
        ----------
        x, w : device arrays
            Of the specs that the plan was made for.
        out : device array, optional
            Written in place; read too where beta is not 0.  A new one if not given.
        workspace : device array, optional
            The caller's own scratch memory, instead of the handle's.

        Returns
        -------
        DeviceArray
            y, which is `out` where that is a DeviceArray.

        Raises
        ------
        ArgumentError, ArrayTypeError, ClosedError, ThreadError
            Before anything is written.
        CudnnError
            The C function failed.
        """
        if self._closed or get_ident() != self._thread:
            self.use()
        device = self._device
        if type(x) is not DeviceArray or x.device is not device:
            x = on_device(self._handle, x, "x")
        if type(w) is not DeviceArray or w.device is not device:
            w = on_device(self._handle, w, "w")
        if x.spec is not self._x_seen:
            self._check_x(x)
        if w.spec is not self._w_seen:
            self._check_w(w)
        if out is None:
            y = self._new_output()
        else:
            y = out if type(out) is DeviceArray and out.device is device else on_device(self._handle, out, "out")
            if y.spec is not self._y_seen:
                self._check_y(y)
        pointers = (x.ptr, w.ptr, y.ptr)
        moved = pointers != self._pointers
        if moved or y.readonly:
            check_writable(y, x, w)
        prepared = self._prepared
        if prepared is None:  # an empty batch
            return y
        stream = self._handle._stream
        needed = scratch = self.workspace
        if workspace is not None:
            scratch = self._own_workspace(workspace, x, w, y)
        elif needed:
            scratch = self._handle.workspace.reserve(needed, stream)
        if moved or scratch != self._scratch:
            prepared.replace(x=x.ptr, w=w.ptr, y=y.ptr, workSpace=scratch)
            self._pointers, self._scratch = pointers, scratch
        crossed = None
        if x.stream is not stream or w.stream is not stream or y.stream is not stream:
            crossed = wait_for_streams(stream, x, w, y)
        try:
            prepared.function(*prepared.arguments)
        except CudnnError as error:
            self._problem.involve(error)
            raise
        finally:
            if crossed:
                for other in crossed:
                    other.wait(stream)
        return y

    def _check_y(self, y: DeviceArray) -> None:
        check_shape(y.spec, self.y)
        if y.spec != self.y:
            raise ArgumentError(f"out is {y.spec}; the plan was made for {self.y}")
        self._y_seen = y.spec

    def _new_output(self) -> DeviceArray:
        if self._scalars.beta.value:
            raise ArgumentError(f"beta={self._scalars.beta.value} needs out, which it scales")
        return arrays.empty(self._device, self._handle.stream, self.y)

    def _own_workspace(self, workspace: Any, x: DeviceArray, w: DeviceArray, y: DeviceArray) -> int:
        own = check_workspace(self._handle, workspace, self.workspace)
        check_overlap(own, "workspace", x=x, w=w, out=y)
        return own.ptr

    def _check_x(self, x: DeviceArray) -> None:
        if x.spec != self.x:
            raise ArgumentError(f"x is {x.spec}; the plan was made for {self.x}")
        self._x_seen = x.spec

    def _check_w(self, w: DeviceArray) -> None:
        # compared with the plan's format, because a filter of one tap fits either
        spec = w.spec
        if spec.shape != self.w.shape or spec.dtype != self.w.dtype or not spec.fits(self.w.layout):
            raise ArgumentError(f"w is {w.spec}; the plan was made for {self.w}")
        self._w_seen = w.spec


def _filter_spec(w: Any, x: TensorSpec) -> FilterSpec:
    if isinstance(w, FilterSpec):
        return w
    return FilterSpec.from_tensor(tensor_spec(w, "w"), channels_last=x.is_channels_last)


def plan_convolution_forward(
    handle: Handle,
    x: Any,
    w: Any,
    conv: ConvolutionSpec = _DEFAULT_CONV,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    algorithm: AlgorithmResult | ConvolutionFwdAlgo | str | None = None,
    workspace_limit: int | str | None = None,
) -> ConvolutionForwardPlan:
    """Make descriptors, choose an algorithm and marshal the arguments once, for many calls.

    Parameters
    ----------
    handle : Handle
        The plan belongs to it and is closed with it.
    x : TensorSpec or device array
        The images, ``(N, C, *spatial)`` with 1 to 3 spatial axes.
    w : FilterSpec or device array
        The filter, ``(K, C / groups, *taps)``, packed.
    conv : ConvolutionSpec
        Padding, stride, dilation, groups, mode, compute type, math type.
    alpha, beta : float
        y = alpha * conv(x, w) + beta * y.  Passed to cuDNN as double for double tensors, as float otherwise.
    out : TensorSpec or device array, optional
        What the result should look like; the dtype and layout of `x` if not given.
    algorithm : AlgorithmResult, ConvolutionFwdAlgo or str, optional
        A search's result (applied with its math type), or an algorithm.  cuDNN's v7 heuristic chooses if not given.
    workspace_limit : int or str, optional
        Bytes, "64 MiB", or "10%" of the device's memory; the handle's limit if not given.

    Returns
    -------
    ConvolutionForwardPlan
        To be called as `plan(x, w, out=y)`.

    Raises
    ------
    ArgumentError
        Shapes, dtypes or options that do not fit together; the message names the argument.
    NoAlgorithmError, WorkspaceLimitError
        Nothing fits the limit.
    NotSupportedError
        cuDNN does not support the combination.

    Warns
    -----
    WorkspaceLimitWarning
        The limit excluded an algorithm that cuDNN's heuristic prefers.

    Notes
    -----
    C functions: `cudnnGetConvolutionForwardAlgorithm_v7`, `cudnnGetConvolutionForwardWorkspaceSize`,
    `cudnnConvolutionForward` (all deprecated since cuDNN 9.0, still shipped and working).
    """
    handle.use()
    limit = handle.workspace.limit
    if workspace_limit is not None:
        limit = handle.workspace.parse(workspace_limit, "workspace_limit")
    if algorithm is not None and not isinstance(algorithm, AlgorithmResult):
        algorithm = parse_enum(ConvolutionFwdAlgo, algorithm, "algorithm")
    problem = _Problem(handle, x, w, conv, out)
    return ConvolutionForwardPlan(handle, problem, algorithm, limit, alpha, beta)


def convolution_forward(
    handle: Handle,
    x: Any,
    w: Any,
    conv: ConvolutionSpec = _DEFAULT_CONV,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Any = None,
    algorithm: AlgorithmResult | ConvolutionFwdAlgo | str | None = None,
    workspace_limit: int | str | None = None,
    workspace: Any = None,
) -> DeviceArray:
    """Convolve images with a filter: y = alpha * conv(x, w) + beta * y, asynchronously.

    Parameters
    ----------
    handle : Handle
        Its stream orders the call, its workspace serves it; it keeps the plan for the next call of the same kind.
    x : device array
        The images, ``(N, C, *spatial)`` with 1 to 3 spatial axes; float32, float64, float16, bfloat16, or int8 where cuDNN
        supports it.  Any object with `__cuda_array_interface__` or `__dlpack__` is taken without a copy.
    w : device array
        The filter, ``(K, C / groups, *taps)``, packed, of the dtype of `x`.
    conv : ConvolutionSpec
        Padding, stride, dilation, groups, mode, compute type, math type.
    alpha, beta : float
        Host scalars.  With beta = 0 `out` is not read.
    out : device array, optional
        Written in place; any strides without overlap.  A new array of the dtype and layout of `x` if not given.
    algorithm : AlgorithmResult, ConvolutionFwdAlgo or str, optional
        As in `plan_convolution_forward`.
    workspace_limit : int or str, optional
        Bytes, "64 MiB", or "10%" of the device's memory; the handle's limit if not given.
    workspace : device array, optional
        The caller's own scratch memory, instead of the handle's.

    Returns
    -------
    DeviceArray
        y, ``(N, K, *spatial)``.  An empty batch gives an empty result without a call.

    Raises
    ------
    ArgumentError, ArrayTypeError, ClosedError, ThreadError
        Before anything is written; the message names the argument, what was given and what is allowed.
    CudnnError
        cuDNN refused or failed; the message has the C function, the status, cuDNN's own words and the specs.

    Notes
    -----
    C function: `cudnnConvolutionForward`.  float32 tensors are multiplied in TF32 on Ampere and later unless
    ``conv.math_type`` is `MathType.FMA`.
    """
    handle.use()
    x = on_device(handle, x, "x")
    w = on_device(handle, w, "w")
    y = None if out is None else on_device(handle, out, "out")
    limit = handle.workspace.limit if workspace_limit is None else workspace_limit
    key = ("convolution_forward", x.spec, w.spec, conv, None if y is None else y.spec, alpha, beta, algorithm, limit)
    plan = cached_plan(
        handle,
        key,
        lambda: plan_convolution_forward(
            handle, x, w, conv, alpha=alpha, beta=beta, out=y, algorithm=algorithm, workspace_limit=limit
        ),
    )
    return plan(x, w, out=y, workspace=workspace)


def get_convolution_forward(
    handle: Handle, x: Any, w: Any, conv: ConvolutionSpec = _DEFAULT_CONV, *, out: Any = None
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
    C function: `cudnnGetConvolutionForwardAlgorithm_v7`.
    """
    handle.use()
    problem = _Problem(handle, x, w, conv, out)
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
    conv: ConvolutionSpec = _DEFAULT_CONV,
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
        contain 50 to 100 us of host overhead, so small problems are often misranked.

    Raises
    ------
    ArgumentError, ArrayTypeError, DeviceMemoryError
        As in `convolution_forward`.

    Notes
    -----
    C function: `cudnnFindConvolutionForwardAlgorithmEx`, with workspace of our own; plain `cudnnFind...`, which
    allocates behind the caller's back, is never used.
    """
    handle.use()
    x, w = on_device(handle, x, "x"), on_device(handle, w, "w")
    y = None if out is None else on_device(handle, out, "out")
    problem = _Problem(handle, x, w, conv, y)
    if y is not None:
        check_writable(y, x, w)
    if problem.y.size == 0:
        raise ArgumentError(f"x={x.spec} is an empty batch; there is nothing to time")
    limit = handle.workspace.limit
    if workspace_limit is not None:
        limit = handle.workspace.parse(workspace_limit, "workspace_limit")
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
            crossed = wait_for_streams(stream, x, w, y)
            api.cudnnFindConvolutionForwardAlgorithmEx(
                native, x_desc, x.ptr, w_desc, w.ptr, conv_desc, y_desc, y.ptr, room, count, results,
                int(scratch.handle), size,
            )  # fmt: skip
        except CudnnError as error:
            problem.involve(error)
            raise
        for other in crossed:
            other.wait(stream)
        return problem.table(results, count.value, f"cudnnFind on {handle.device}")


def _search_workspace(problem: _Problem, limit: int | None) -> int:
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
