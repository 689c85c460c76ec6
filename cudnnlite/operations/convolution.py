"""Forward convolution: one line, and a plan for many calls."""

from __future__ import annotations

from threading import get_ident
from typing import Any

from cudnnlite._raw.calls import PreparedCall
from cudnnlite.devices import arrays
from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.handle import Handle
from cudnnlite.enums import ConvolutionFwdAlgo, MathType, Status, parse_enum
from cudnnlite.errors import ArgumentError, CudnnError, NotSupportedError, WorkspaceLimitError, WorkspaceLimitWarning
from cudnnlite.operations import recording
from cudnnlite.operations.choosing import tuned_choice
from cudnnlite.operations.convolution_problem import DEFAULT_CONV, ConvolutionProblem, filter_spec_of
from cudnnlite.operations.layout_conversion import ConvertedConvolution, conversion_layout
from cudnnlite.operations.operands import (
    HostScalars,
    check_overlap,
    check_shape,
    check_workspace,
    check_writable,
    on_device,
    use,
    wait_for_streams,
)
from cudnnlite.operations.plan import Plan, cached_plan
from cudnnlite.operations.problem import ConvolutionForwardProblem, real_number
from cudnnlite.search.results import AlgorithmResult, AlgorithmTable
from cudnnlite.sizes import format_size
from cudnnlite.specs import ConvolutionSpec, TensorSpec
from cudnnlite.warn import warn_user


class ConvolutionForwardPlan(Plan):
    """A forward convolution made once and called many times: `plan(x, w, out=y)`.  See `plan_convolution_forward`.

    Attributes
    ----------
    x, w, conv, y : specs
        What it was made for.
    choice : AlgorithmResult or None
        Algorithm, math type and layout that each call uses, with what was passed over; None for an empty batch.
    workspace : int
        Bytes that each call needs; converted operands are among them.

    Notes
    -----
    C functions of a call: `cudnnConvolutionForward`, and `cudnnTransformTensor` where operands are converted.
    """

    def __init__(
        self,
        handle: Handle,
        problem: ConvolutionProblem,
        algorithm: AlgorithmResult | ConvolutionFwdAlgo | None,
        workspace_limit: int | None,
        alpha: float,
        beta: float,
    ) -> None:
        scalars = HostScalars(alpha, beta, problem.conv.compute_type_for(problem.x))
        super().__init__(handle, f"ConvolutionForwardPlan of {problem.x} by {problem.w}, {problem.conv}")
        self.x, self.w, self.conv, self.y = problem.x, problem.w, problem.conv, problem.y
        self._problem = problem
        self._scalars, self._scale = scalars, (alpha, beta)
        self._recorded: ConvolutionForwardProblem | None = None  # made when somebody records
        # the specs that were compared last: the same objects need not be compared again
        self._x_seen: TensorSpec = problem.x
        self._w_seen: TensorSpec | None = None
        self._y_seen: TensorSpec = problem.y
        # what the last call was given: the addresses of x, w and y, found not to overlap, and of the workspace
        self._pointers, self._scratch = (0, 0, 0), 0
        self._prepared: PreparedCall | ConvertedConvolution | None = None
        self.choice: AlgorithmResult | None = None
        self.workspace = 0
        self._limit = workspace_limit
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
            problem.prefer_tensor_cores()
            table = problem.heuristic()
            if not any(row.ok for row in table):
                raise NotSupportedError(
                    "cudnnGetConvolutionForwardAlgorithm_v7",
                    Status.NOT_SUPPORTED,
                    "every algorithm refuses this combination",
                )
            choice = table.best(limit)
            self._tell_passed_over(choice, limit)
        elif isinstance(algorithm, AlgorithmResult):
            choice = algorithm
        else:
            choice = AlgorithmResult(algorithm, problem.conv.math_type)
        if problem.conv.math_type == MathType.FMA != choice.math_type:
            raise ArgumentError(
                f"algorithm was found with math type {choice.math_type}; conv asks for FMA, true float32, which that would undo"
            )
        layout = conversion_layout(problem, choice.layout)
        if layout:
            self._prepared = ConvertedConvolution(problem, choice, layout, self._scalars, self._resources)
            self.workspace = self._prepared.workspace
        else:
            self._prepared, self.workspace = problem.prepare(choice, self._scalars)
        if limit is not None and self.workspace > limit:
            converted = f" in {layout}, converted operands included," if layout else ""
            raise WorkspaceLimitError(
                f"{choice.algorithm}{converted} needs a workspace of {format_size(self.workspace)}; the limit is "
                f"{format_size(limit)}"
            )
        self.choice = choice

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
            check_writable(y, "out", x=x, w=w)
        prepared = self._prepared
        if prepared is None:  # an empty batch
            return y
        stream = self._handle._stream
        needed = scratch = self.workspace
        if workspace is not None:
            scratch = self._own_workspace(workspace, x, w, y)
        elif needed:
            scratch = self._handle.workspace.reserve(needed, stream, limit=self._limit)
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
        if recording.active:
            self._record()
        return y

    def _record(self) -> None:
        if self._recorded is None:
            self._recorded = ConvolutionForwardProblem(self.x, self.w, self.conv, self.y, *self._scale)
        recording.record(self._recorded)

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


def plan_convolution_forward(
    handle: Handle,
    x: Any,
    w: Any,
    conv: ConvolutionSpec = DEFAULT_CONV,
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
        A search's result, or an algorithm.  A result is applied with its math type and its layout: where the operands lie
        in another, each call converts them, and the output back.  cuDNN's v7 heuristic chooses if not given.
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
    C functions: `cudnnGetConvolutionForwardWorkspaceSize`; where no algorithm is given,
    `cudnnGetConvolutionForwardAlgorithm_v7` and `cudnnGetConvolutionForwardAlgorithmMaxCount`; of a call,
    `cudnnConvolutionForward`, and `cudnnTransformTensor` where operands are converted.  All are deprecated since cuDNN 9.0,
    still shipped and working.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     x = handle.array(np.ones((1, 3, 8, 8), np.float32))
    ...     w = handle.array(np.ones((4, 3, 3, 3), np.float32))
    ...     with dnn.plan_convolution_forward(handle, x, w, workspace_limit="64 MiB") as plan:
    ...         y = plan(x, w)
    ...         for _ in range(3):
    ...             y = plan(x, w, out=y)  # nothing is decided or allocated again
    ...     print(y.shape, plan.closed)
    (1, 4, 6, 6) True
    """
    use(handle)
    limit = handle.workspace.limit_for(workspace_limit)
    problem = ConvolutionProblem(handle, x, w, conv, out)
    alpha, beta = real_number(alpha, "alpha"), real_number(beta, "beta")
    kind = _parse_algorithm(algorithm)
    if kind is None and handle.chooser is not None and problem.y.size:
        posed = ConvolutionForwardProblem(problem.x, problem.w, problem.conv, problem.y, alpha, beta)
        known = {
            name: array if isinstance(array, DeviceArray) else None
            for name, array in zip(("x", "w", "out"), (x, w, out), strict=True)
        }
        kind = tuned_choice(handle, posed, lambda: posed, limit, **known)
    return ConvolutionForwardPlan(handle, problem, kind, limit, alpha, beta)


def convolution_forward(
    handle: Handle,
    x: Any,
    w: Any,
    conv: ConvolutionSpec = DEFAULT_CONV,
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
    C functions: `cudnnConvolutionForward`; for the first call of a kind, also those of `plan_convolution_forward`.

    float32 tensors are multiplied in TF32 on Ampere and later unless
    ``conv.math_type`` is `MathType.FMA`.  Without `algorithm`, DEFAULT math means TENSOR_OP in half precision (float16 and
    bfloat16), which is as accurate, and uses the tensor cores.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     x = handle.array(np.ones((1, 3, 8, 8), np.float32))
    ...     w = handle.array(np.ones((4, 3, 3, 3), np.float32))
    ...     conv = dnn.ConvolutionSpec(padding=1, stride=2)
    ...     y = dnn.convolution_forward(handle, x, w, conv)
    ...     print(y.shape, y.numpy()[0, 0, 1, 1])
    (1, 4, 4, 4) 27.0
    """
    use(handle)
    x = on_device(handle, x, "x")
    w = on_device(handle, w, "w")
    y = None if out is None else on_device(handle, out, "out")
    if workspace is not None and workspace_limit is None:
        workspace = on_device(handle, workspace, "workspace")
        workspace_limit = workspace.nbytes  # the caller's buffer is all there is
    limit = handle.workspace.limit_for(workspace_limit)
    # as plain values, so that what is equal finds the same plan
    alpha, beta = real_number(alpha, "alpha"), real_number(beta, "beta")
    algorithm = _parse_algorithm(algorithm)
    if algorithm is None and handle.chooser is not None and x.spec.size:
        posed = (x.spec, w.spec, conv, None if y is None else y.spec, alpha, beta)
        algorithm = tuned_choice(handle, posed, lambda: _problem(*posed), limit, x=x, w=w, out=y)
    key = ("convolution_forward", x.spec, w.spec, conv, None if y is None else y.spec, alpha, beta, algorithm, limit)
    plan = cached_plan(
        handle,
        key,
        lambda: plan_convolution_forward(
            handle, x, w, conv, alpha=alpha, beta=beta, out=y, algorithm=algorithm, workspace_limit=limit
        ),
    )
    return plan(x, w, out=y, workspace=workspace)


def _problem(
    x: TensorSpec, w: TensorSpec, conv: ConvolutionSpec, y: TensorSpec | None, alpha: float, beta: float
) -> ConvolutionForwardProblem:
    """Return the problem of a call with arrays of these specs."""
    return ConvolutionForwardProblem(x, filter_spec_of(w, x), conv, y, alpha, beta)  # type: ignore[arg-type]


def _parse_algorithm(algorithm: Any) -> AlgorithmResult | ConvolutionFwdAlgo | None:
    if isinstance(algorithm, AlgorithmResult) and not algorithm.ok:
        raise ArgumentError(f"algorithm={algorithm} cannot be used: {algorithm.why_not or algorithm.status}")
    if algorithm is None or isinstance(algorithm, AlgorithmResult):
        return algorithm
    if isinstance(algorithm, AlgorithmTable):
        raise ArgumentError("algorithm is a whole table; pass one of its rows, such as found.best()")
    return parse_enum(ConvolutionFwdAlgo, algorithm, "algorithm")
