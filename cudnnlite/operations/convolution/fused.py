"""Forward convolution with a bias, an addition and an activation, in one kernel where cuDNN has one."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np

from cudnnlite._raw.calls import PreparedCall
from cudnnlite.arguments import real_number, shown
from cudnnlite.devices.arrays import DeviceArray
from cudnnlite.devices.foreign import AnyArray, Operand
from cudnnlite.devices.handle import Handle
from cudnnlite.dtypes import dtype_name, itemsize, numpy_dtype
from cudnnlite.enums import ActivationMode, ConvolutionFwdAlgo, DataType
from cudnnlite.errors import ArgumentError
from cudnnlite.graph.engines import Engine
from cudnnlite.graph.execution_plan import ExecutionPlan
from cudnnlite.graph.operation_graph import Graph, convolution_graph, fused_graph
from cudnnlite.operations.convolution.documented_choice import documented_choice
from cudnnlite.plans.call import call, make_plan
from cudnnlite.plans.native_problem import Described
from cudnnlite.plans.operation_plan import OperationPlan
from cudnnlite.problems import convolution as convolution_problem
from cudnnlite.problems.convolution import DEFAULT_CONV
from cudnnlite.problems.operation import Operation
from cudnnlite.problems.problem import KINDS, Problem
from cudnnlite.problems.results import AlgorithmResult
from cudnnlite.specs import ConvolutionSpec, FilterSpec, TensorSpec
from cudnnlite.specs.layers import ActivationSpec
from cudnnlite.specs.layout import same_strides
from cudnnlite.unknown import refuse_unknown

IDENTITY = ActivationSpec("identity")
RELU = ActivationSpec("relu")
_ZERO = ctypes.c_double(0.0)  # for float and double alike: alpha2 where nothing is added


def _infer(
    x: TensorSpec, w: FilterSpec, bias: TensorSpec, conv: ConvolutionSpec, **others: Any
) -> TensorSpec:
    y = conv.output_spec(x, w)
    needed = (1, y.shape[1], *[1] * (y.rank - 2))
    if bias.shape != needed:
        raise ArgumentError(
            f"bias has shape {bias.shape}; needed: {needed}, a value for each filter of w"
        )
    if "z" in others and others["z"].shape != y.shape:
        raise ArgumentError(f"z has shape {others['z'].shape}; the result has {y.shape}")
    return y


def _check(specs: Any, options: Any) -> None:
    x, y = specs["x"], specs["y"]
    integers = numpy_dtype(x.dtype).kind in "iu"
    wanted = {
        "y": y.dtype if integers else x.dtype,
        "bias": DataType.FLOAT if integers else x.dtype,
        "z": y.dtype,
    }
    for name, dtype in wanted.items():
        if name in specs and specs[name].dtype != dtype:
            argument = "out" if name == "y" else name
            raise ArgumentError(
                f"{argument} is {dtype_name(specs[name].dtype)}; needed: {dtype_name(dtype)}"
            )
    if "z" in specs and not same_strides(y.shape, y.strides, specs["z"].strides):
        raise ArgumentError(f"z is {specs['z']}; it must lie in memory as the result does, {y}")


def _complete(specs: Any, options: Any) -> Any:
    return {**options, **convolution_problem.FORWARD.complete(specs, options)}


def _build(handle: Handle, stack: ExitStack, problem: Any) -> Graph:
    alpha2 = problem.values.get("alpha2", 0.0)
    return fused_graph(
        handle, stack, problem.specs, problem.conv, problem.activation, problem.alpha, alpha2
    )


def _hint(problem: Any) -> str:
    """Return what no engine of an H200 does together, and a way out."""
    if problem.alpha == 1 or "z" in problem.specs:
        return convolution_problem.FORWARD.hint(problem)
    scaled = f"no engine scales a convolution (alpha={problem.alpha}) and adds a bias"
    if problem.operation.name == BIAS.name:
        return f"{scaled}; without interface='graph' the descriptor call does"
    if not problem.conv.is_symmetric:
        scaled = f"padding={problem.conv.padding} needs an engine, and {scaled}"
    return (
        f"{scaled}; dnn.convolution_forward(..., bias=bias, alpha={problem.alpha}) does, "
        "dnn.activation_forward behind it the rest"
    )


def _fits(problem: Any, algorithm: Any) -> str:
    mode = problem.activation.mode
    if mode not in (ActivationMode.IDENTITY, ActivationMode.RELU):
        return f"cudnnConvolutionBiasActivationForward has no {mode.name}; allowed: RELU, IDENTITY"
    if mode == ActivationMode.IDENTITY and algorithm != ConvolutionFwdAlgo.IMPLICIT_PRECOMP_GEMM:
        return "cudnnConvolutionBiasActivationForward has IDENTITY with IMPLICIT_PRECOMP_GEMM only"
    return ""


class _ConvolutionThenBias:
    """A convolution, and `cudnnAddTensor` behind it: a plan calls it as it calls a `PreparedCall`."""

    arguments: tuple[()] = ()
    check = None  # each of its calls does that
    remark = "cudnnAddTensor adds the bias"

    def __init__(self, described: Described, convolution: PreparedCall) -> None:
        kind = np.float64 if described.problem.x.dtype == DataType.DOUBLE else np.float32
        self._one = np.ones((), kind)
        one, bias, y = (
            self._one.ctypes.data,
            described.descriptors["bias"].ptr,
            described.descriptors["y"].ptr,
        )
        self._convolution = convolution
        self._addition = described.prepare(
            "cudnnAddTensor", alpha=one, beta=one, aDesc=bias, A=0, cDesc=y, C=0
        )

    def replace(self, bias: int, y: int, z: int = 0, **addresses: int) -> None:
        """Change the addresses."""
        self._convolution.replace(y=y, **addresses)
        self._addition.replace(A=bias, C=y)

    def function(self) -> None:
        """Enqueue both."""
        self._convolution()
        self._addition()


def _apart(described: Described, algorithm: Any, size: int) -> Any:
    convolution = described.prepare(
        "cudnnConvolutionForward", algo=algorithm, workSpaceSizeInBytes=size
    )
    return _ConvolutionThenBias(described, convolution)


def _adds_bias_apart(problem: Any) -> bool:
    """Whether an engine convolves and `cudnnAddTensor` adds the bias.

    Only graphs pad the ends of an axis differently, and no engine of an H200 scales a convolution, or adds to it what the
    output held, and adds a bias too.
    """
    return not problem.conv.is_symmetric and (problem.alpha != 1 or problem.beta != 0)


def _build_with_bias(handle: Handle, stack: ExitStack, problem: Any) -> Graph:
    if not _adds_bias_apart(problem):
        return _build(handle, stack, problem)
    specs = {name: spec for name, spec in problem.specs.items() if name != "bias"}
    kind = convolution_problem.ALGORITHMS.graph
    return convolution_graph(handle, stack, kind, specs, problem.conv, problem.alpha, problem.beta)


def _why_no_graph_with_bias(problem: Any) -> str:
    if problem.beta and not _adds_bias_apart(problem):
        return f"none adds a bias and beta * out (beta={problem.beta}), which interface='descriptor' does, or a call for each"
    return ""


def _completed_with_bias(described: Described, plan: ExecutionPlan) -> Any:
    if not _adds_bias_apart(described.problem):
        return plan
    return _ConvolutionThenBias(described, plan)


def _words(problem: Any) -> str:
    behind = [f"{name}" for name in ("bias", "z") if name in problem.operation.reads]
    return f"{convolution_problem.words(problem)}, {', '.join((*behind, problem.activation.mode.name))}"


def _alignments(specs: Mapping[str, Any], options: Mapping[str, Any]) -> Mapping[str, int]:
    """Return what the descriptor call needs of 16-bit tensors: it adds them by vectors of up to 16 bytes on an H200."""
    if itemsize(specs["x"].dtype) != 2:
        return {}
    added = {"bias", "z"} & specs.keys()
    if options.get("beta"):  # the old values are added
        added.add("y")
    return dict.fromkeys(added, 16)


_NAMES = {**convolution_problem.FORWARD.names, "alpha1": "alpha"}
_ITSELF = {**_NAMES, "z": "y", "zDesc": "yDesc"}
_FUSED_ALGORITHMS = replace(convolution_problem.ALGORITHMS, find="", build=_build, fits=_fits)
FUSED = replace(
    convolution_problem.FORWARD,
    name="convolution_bias_activation_forward",
    function="cudnnConvolutionBiasActivationForward",
    reads=("x", "w", "bias"),
    infer=_infer,
    options={"conv": ConvolutionSpec, "activation": ActivationSpec},
    names=_ITSELF,
    constants={"alpha2": ctypes.addressof(_ZERO)},
    check=_check,
    complete=_complete,
    words=_words,
    alignments=_alignments,
    hint=_hint,
    algorithms=_FUSED_ALGORITHMS,
)
# `convolution_forward` with a bias: of IDENTITY, and what is added are the old values
BIAS = replace(
    FUSED,
    name="convolution_bias_forward",
    names={**_ITSELF, "alpha2": "beta"},
    constants={},
    algorithms=replace(
        _FUSED_ALGORITHMS,
        apart=_apart,
        build=_build_with_bias,
        why_no_graph=_why_no_graph_with_bias,
        completed=_completed_with_bias,
    ),
)
FUSED_WITH_Z = replace(
    FUSED,
    name="convolution_bias_addition_activation_forward",
    reads=("x", "w", "bias", "z"),
    options={**FUSED.options, "alpha2": float},
    names=_NAMES,
    constants={},
    in_place=frozenset({"z"}),
)


class ConvolutionBiasActivationForwardProblem(Problem, operation=FUSED):
    """A convolution with bias and activation: y = activation(alpha * conv(x, w) + alpha2 * z + bias).

    Parameters
    ----------
    x, w, bias : TensorSpec, FilterSpec, TensorSpec
        The images, the filter, and a value for each of its filters, ``(1, K, 1, ...)``.
    conv, activation : ConvolutionSpec, ActivationSpec
        What is done; "relu" if no activation is given.
    z : TensorSpec, optional
        What is added, lying in memory as the result does.
    y : TensorSpec, optional
        The output; packed, in the dtype and layout of `x`, if not given.
    alpha, alpha2 : float
        The scalars; 1 if not given.

    Examples
    --------
    >>> x, w = dnn.TensorSpec((8, 64, 28, 28), "float16", "NHWC"), dnn.FilterSpec((64, 64, 3, 3), "float16", "NHWC")
    >>> bias = dnn.TensorSpec((1, 64, 1, 1), "float16", "NHWC")
    >>> problem = dnn.ConvolutionBiasActivationForwardProblem(x, w, bias, dnn.ConvolutionSpec(padding=1))
    >>> problem.y.shape, problem.activation.mode.name
    ((8, 64, 28, 28), 'RELU')
    """

    def __init__(
        self,
        x: TensorSpec,
        w: FilterSpec,
        bias: TensorSpec,
        conv: ConvolutionSpec = DEFAULT_CONV,
        activation: ActivationSpec | ActivationMode | str = RELU,
        z: TensorSpec | None = None,
        y: TensorSpec | None = None,
        alpha: float = 1.0,
        alpha2: float | None = None,
    ) -> None:
        operation, operands, options = _posed(x, w, bias, conv, activation, z, alpha2)
        values = dict(
            zip((*operation.reads, *operation.options), (*operands, *options), strict=True)
        )
        super().__init__(operation, **values, y=y, alpha=alpha)


KINDS[FUSED_WITH_Z.name] = ConvolutionBiasActivationForwardProblem


class ConvolutionBiasActivationForwardPlan(OperationPlan, operation=FUSED):
    """A convolution with bias and activation, made once and called many times: `plan(x, w, bias, out=y)`.

    See `plan_convolution_bias_activation_forward`.
    """


def _posed(
    x: Any, w: Any, bias: Any, conv: Any, activation: Any, z: Any, alpha2: Any
) -> tuple[Operation, tuple[Any, ...], tuple[Any, ...]]:
    """Return the operation, its operands and its options."""
    if z is not None:
        return FUSED_WITH_Z, (x, w, bias, z), (conv, activation, 1.0 if alpha2 is None else alpha2)
    if alpha2 is not None and real_number(alpha2, "alpha2"):
        raise ArgumentError(f"alpha2={shown(alpha2)} scales z, which is not given")
    return FUSED, (x, w, bias), (conv, activation)


@documented_choice(FUSED, "plan")
def plan_convolution_bias_activation_forward(
    handle: Handle,
    x: Operand,
    w: Operand,
    bias: Operand,
    conv: ConvolutionSpec = DEFAULT_CONV,
    activation: ActivationSpec | ActivationMode | str = RELU,
    *,
    z: Operand | None = None,
    alpha: float = 1.0,
    alpha2: float | None = None,
    out: AnyArray | None = None,
    algorithm: AlgorithmResult | Engine | ConvolutionFwdAlgo | str | None = None,
    workspace_limit: int | str | None = None,
    interface: str | None = None,
    replay: bool = False,
) -> OperationPlan:
    """Decide and marshal a convolution with bias and activation once, for many calls.

    Parameters
    ----------
    x, w, bias, z : specs or device arrays
        As in `convolution_bias_activation_forward`; with `z` the plan is called as `plan(x, w, bias, z, out=y)`.
    conv, activation
        As there.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     x = handle.array(np.ones((1, 3, 8, 8), np.float32))
    ...     w, bias = handle.array(np.ones((4, 3, 3, 3), np.float32)), handle.array(np.full((1, 4, 1, 1), -20, np.float32))
    ...     with dnn.plan_convolution_bias_activation_forward(handle, x, w, bias) as plan:
    ...         y = plan(x, w, bias)
    ...         y = plan(x, w, bias, out=y)
    ...     print(y.numpy()[0, 0, 0, 0], isinstance(plan.choice.algorithm, dnn.Engine))
    7.0 True
    """
    operation, operands, options = _posed(x, w, bias, conv, activation, z, alpha2)
    return make_plan(  # type: ignore[no-any-return]
        handle,
        operation,
        operands,
        options,
        alpha=alpha,
        out=out,
        algorithm=algorithm,
        workspace_limit=workspace_limit,
        interface=interface,
        replay=replay,
    )


@documented_choice(FUSED, "call")
def convolution_bias_activation_forward(
    handle: Handle,
    x: AnyArray,
    w: AnyArray,
    bias: AnyArray,
    conv: ConvolutionSpec = DEFAULT_CONV,
    activation: ActivationSpec | ActivationMode | str = RELU,
    *,
    z: AnyArray | None = None,
    alpha: float = 1.0,
    alpha2: float | None = None,
    out: AnyArray | None = None,
    algorithm: AlgorithmResult | Engine | ConvolutionFwdAlgo | str | None = None,
    workspace_limit: int | str | None = None,
    interface: str | None = None,
    workspace: AnyArray | None = None,
    **unknown: NoReturn,
) -> DeviceArray:
    """Convolve, add, and apply a function, asynchronously: y = activation(alpha * conv(x, w) + alpha2 * z + bias).

    One kernel does it, without results in between.  With "identity" the descriptor call has IMPLICIT_PRECOMP_GEMM only; some
    combinations neither it nor an engine does: an alpha with an activation that engines alone have, for instance, which they do
    not scale without z.

    Parameters
    ----------
    x, w : device arrays
        The images and the filter, as in `convolution_forward`.
    bias : device array
        ``(1, K, 1, ...)``, of the result's data type; float32 beside integers.
    conv : ConvolutionSpec
        Padding, stride, dilation, groups, mode, compute type, math type.
    activation : ActivationSpec, ActivationMode or str
        "relu", "identity"; as engines also "sigmoid", "tanh", "clipped_relu", "elu", and in NHWC "swish".  "relu" if not given.
    z : device array, optional
        What is added: of the result's shape and data type, and with its layout.  It may be `out` itself.

    Examples
    --------
    >>> with dnn.Handle() as handle:
    ...     x = handle.array(np.ones((1, 3, 8, 8), np.float32))
    ...     w, bias = handle.array(np.ones((4, 3, 3, 3), np.float32)), handle.array(np.full((1, 4, 1, 1), -20, np.float32))
    ...     conv = dnn.ConvolutionSpec(padding=1)
    ...     y = dnn.convolution_bias_activation_forward(handle, x, w, bias, conv, "relu")
    ...     more = dnn.convolution_bias_activation_forward(handle, x, w, bias, conv, "identity", z=y, alpha2=2.0)
    ...     print(y.numpy()[0, 0, 0, :2], more.numpy()[0, 0, 1, :2])
    [0. 0.] [-2. 21.]
    """
    if unknown:
        refuse_unknown(convolution_bias_activation_forward, unknown)
    operation, operands, options = _posed(x, w, bias, conv, activation, z, alpha2)
    return call(
        handle,
        operation,
        operands,
        options,
        alpha,
        0.0,
        out,
        algorithm,
        workspace_limit,
        workspace,
        interface,
    )
