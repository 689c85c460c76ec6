"""Forward convolution followed by a bias, an addition and an activation, as declarations."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cudnnlite.dtypes import dtype_name, itemsize, numpy_dtype
from cudnnlite.enums import ActivationMode, ConvolutionFwdAlgo, DataType
from cudnnlite.errors import ArgumentError
from cudnnlite.problems import convolution
from cudnnlite.specs import ConvolutionSpec, FilterSpec, TensorSpec
from cudnnlite.specs.layers import ActivationSpec
from cudnnlite.specs.layout import CHANNELS_LAST, same_strides, span

IDENTITY = ActivationSpec("identity")
RELU = ActivationSpec("relu")
# The value of alpha2 without z.  C may read its bytes as a float 0, too.
_ZERO = ctypes.c_double(0.0)


def _infer(
    x: TensorSpec,
    w: FilterSpec,
    bias: TensorSpec,
    conv: ConvolutionSpec,
    z: TensorSpec | None = None,
    **_: Any,
) -> TensorSpec:
    y = conv.output_spec(x, w)
    bias_shape = (1, y.shape[1], *[1] * (y.rank - 2))
    is_vector = bias.rank == y.rank and bias.shape == (1, bias.size, *bias_shape[2:])
    if is_vector and bias.shape != bias_shape:  # the caller may have given it as (K,)
        raise ArgumentError(
            f"bias has {bias.size} values; needed: {y.shape[1]}, one for each filter of w"
        )
    if bias.shape != bias_shape:
        raise ArgumentError(
            f"bias has shape {bias.shape}; needed: {bias_shape}, a value for each filter of w"
        )
    if z is not None and z.shape != y.shape:
        raise ArgumentError(f"z has shape {z.shape}; the result has {y.shape}")
    return y


def _check(specs: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    x, y = specs["x"], specs["y"]
    if numpy_dtype(x.dtype).kind in "iu":
        needed_dtypes = {"bias": DataType.FLOAT, "z": y.dtype}
    else:
        needed_dtypes = {"y": x.dtype, "bias": x.dtype, "z": y.dtype}
    for name, dtype in needed_dtypes.items():
        if name in specs and specs[name].dtype != dtype:
            argument = "out" if name == "y" else name
            raise ArgumentError(
                f"{argument} is {dtype_name(specs[name].dtype)}; needed: {dtype_name(dtype)}"
            )
    bias = specs["bias"]
    if span(bias.shape, bias.strides) != bias.size:
        raise ArgumentError(
            f"bias has strides {bias.strides}; needed: a packed array, because cuDNN reads gaps as "
            "values"
        )
    if "z" in specs and not same_strides(y.shape, y.strides, specs["z"].strides):
        raise ArgumentError(f"z is {specs['z']}; needed: the layout of the result, which is {y}")


def _complete(specs: Mapping[str, Any], options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options, with those of the convolution completed."""
    return {**options, **convolution.FORWARD.complete(specs, options)}


def _hint(problem: Any) -> str:
    """Return the combination that no engine of an H200 computes, and an alternative."""
    if problem.alpha == 1 or "z" in problem.specs:
        return convolution.FORWARD.description.hint(problem)
    reason = f"no engine scales a convolution (alpha={problem.alpha}) and adds a bias"
    if problem.operation is BIAS:
        return f"{reason}; without interface='graph' the descriptor call does"
    if not problem.conv.is_symmetric:
        reason = f"padding={problem.conv.padding} needs an engine, and {reason}"
    return (
        f"{reason}; dnn.convolution_forward(..., bias=bias, alpha={problem.alpha}) does, "
        "then dnn.activation_forward"
    )


def _why_unsupported(problem: Any, algorithm: Any) -> str | None:
    mode = problem.activation.mode
    if mode not in (ActivationMode.IDENTITY, ActivationMode.RELU):
        return f"cudnnConvolutionBiasActivationForward has no {mode.name}; allowed: RELU, IDENTITY"
    if mode == ActivationMode.IDENTITY and algorithm != ConvolutionFwdAlgo.IMPLICIT_PRECOMP_GEMM:
        return "cudnnConvolutionBiasActivationForward has IDENTITY with IMPLICIT_PRECOMP_GEMM only"
    return None


def adds_bias_apart(problem: Any) -> bool:
    """Return whether an engine convolves, and `cudnnAddTensor` adds the bias after it.

    Only graphs can pad the two ends of an axis differently.  No engine of an H200 adds a bias to a
    convolution that is scaled, or that is added to the old values of the output.
    """
    if problem.operation is not BIAS or problem.conv.is_symmetric:
        return False
    return bool(problem.alpha != 1 or problem.beta != 0)


def activates_apart(problem: Any) -> bool:
    """Return whether an engine convolves, and `cudnnActivationForward` is called after it.

    Engine 0 is the only one that has a tanh behind a bias in every layout, with scalars, and in
    true float32.  It computes 0 or NaN for values from 44 on, in float64 from 355 on (H200, cuDNN
    9.19 and 9.28).
    """
    is_fused = problem.operation in (FUSED, FUSED_WITH_Z)
    return bool(is_fused and problem.activation.mode == ActivationMode.TANH)


def _why_no_graph_with_bias(problem: Any) -> str | None:
    if problem.beta and not adds_bias_apart(problem):
        return (
            f"none adds a bias and beta * out (beta={problem.beta}); "
            "interface='descriptor' does, or one call for each"
        )
    return None


def _words(problem: Any) -> str:
    steps = [name for name in ("bias", "z") if name in problem.operation.reads]
    steps.append(problem.activation.mode.name)
    return f"{convolution.words(problem)}, {', '.join(steps)}"


def _alignments(specs: Mapping[str, Any], options: Mapping[str, Any]) -> Mapping[str, int]:
    """Return the alignments that the descriptor call needs.

    An H200 adds a bias, images of 16-bit values, and those of float32 with channels last in
    vectors of 16 bytes.  With less, the CUDA context ends, or the numbers are wrong.
    """
    if specs["x"].dtype == DataType.DOUBLE:
        return {}
    addends = {"bias"}
    images = [specs[name] for name in ("x", "z", "y") if name in specs]
    has_channels_last = any(image.fits(CHANNELS_LAST.get(image.rank)) for image in images)
    if itemsize(specs["x"].dtype) == 2 or has_channels_last:
        addends.add("z")
        if options.get("beta"):  # the old values of y are added
            addends.add("y")
    return dict.fromkeys(addends & specs.keys(), 16)


_NAMES = {**convolution.FORWARD.names, "alpha1": "alpha"}
# cuDNN needs an address for z even without a z.  It then receives the address of y.
_Z_IS_Y = {**_NAMES, "z": "y", "zDesc": "yDesc"}
_ALGORITHMS = replace(convolution.ALGORITHMS, find="", why_unsupported=_why_unsupported)
FUSED = replace(
    convolution.FORWARD,
    name="convolution_bias_activation_forward",
    function="cudnnConvolutionBiasActivationForward",
    reads=("x", "w", "bias"),
    infer=_infer,
    options={"conv": ConvolutionSpec, "activation": ActivationSpec},
    names=_Z_IS_Y,
    constants={"alpha2": ctypes.addressof(_ZERO)},
    check=_check,
    complete=_complete,
    alignments=_alignments,
    description=replace(convolution.FORWARD.description, hint=_hint, words=_words),
    algorithms=_ALGORITHMS,
)
# `convolution_forward` with a bias.  The activation is IDENTITY, and the old y is added.
BIAS = replace(
    FUSED,
    name="convolution_bias_forward",
    names={**_Z_IS_Y, "alpha2": "beta"},
    constants={},
    algorithms=replace(_ALGORITHMS, why_no_graph=_why_no_graph_with_bias),
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
