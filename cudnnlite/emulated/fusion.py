"""Emulated pointwise operations behind a convolution: what they compute, and which chains of them an H200 has engines for.

The rules reproduce a table recorded on an H200 with cuDNN 9.19 (tests/emulated/data/graphs.json): what is not in it is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from cudnnlite._raw.enums import PointwiseMode
from cudnnlite.emulated.backend import Native, finalizes
from cudnnlite.emulated.registry import bad, unsupported
from cudnnlite.enums import ConvolutionMode, DataType, TensorFormat
from cudnnlite.specs import ConvolutionSpec, FilterSpec, TensorSpec
from cudnnlite.specs.layout import CHANNELS_LAST, same_strides

Array = np.ndarray[Any, Any]
BINARY: Mapping[PointwiseMode, Callable[..., Array]] = {
    PointwiseMode.ADD: np.add,
    PointwiseMode.MUL: np.multiply,
}
_COEFFICIENTS = {
    "relu_upper_clip": np.inf,
    "elu_alpha": 1.0,
    "swish_beta": 1.0,
}  # by attribute: what it is if not set
UNARY: Mapping[PointwiseMode, Callable[..., Array]] = {
    PointwiseMode.IDENTITY: lambda x, upper, alpha, beta: x,
    PointwiseMode.RELU_FWD: lambda x, upper, alpha, beta: np.clip(x, 0, upper),
    PointwiseMode.TANH_FWD: lambda x, upper, alpha, beta: np.tanh(x),
    PointwiseMode.SIGMOID_FWD: lambda x, upper, alpha, beta: 1 / (1 + np.exp(-x)),
    PointwiseMode.SWISH_FWD: lambda x, upper, alpha, beta: x / (1 + np.exp(-beta * x)),
    PointwiseMode.ELU_FWD: lambda x, upper, alpha, beta: (
        np.maximum(x, 0) + alpha * np.expm1(np.minimum(x, 0))
    ),
}
_BUILT_IN = {
    PointwiseMode.RELU_FWD,
    PointwiseMode.TANH_FWD,
    PointwiseMode.SIGMOID_FWD,
    PointwiseMode.ELU_FWD,
}


def spec_of(tensor: Native) -> TensorSpec:
    """Return the spec of a "TENSOR"; ArgumentError if there is none."""
    dims, strides = (tuple(tensor.values[name]) for name in ("dimensions", "strides"))
    return TensorSpec(dims, DataType(tensor.one("data_type")), strides=strides)


@finalizes("POINTWISE")
def _check_mode(pointwise: Native) -> None:
    """Refuse a "POINTWISE" of a mode, or with an attribute, that nothing is known of."""
    mode = PointwiseMode(pointwise.one("mode"))
    if mode not in BINARY and mode not in UNARY:
        raise unsupported(f"pointwise mode {pointwise.one('mode')}")
    known = {"mode", "math_prec", "nan_propagation", *_COEFFICIENTS}
    if unknown := pointwise.values.keys() - known:
        raise unsupported(f"the emulated device knows nothing of {', '.join(sorted(unknown))}")


@finalizes("OPERATION_POINTWISE")
def _check_operation(operation: Native) -> None:
    """Refuse an "OPERATION_POINTWISE" that lacks an operand, or has one too many."""
    binary = PointwiseMode(operation.one("pw_descriptor").one("mode")) in BINARY
    needed = {"xdesc", "ydesc"} | ({"bdesc"} if binary else set())
    if missing := sorted(needed - operation.values.keys()):
        raise bad(f"OPERATION_POINTWISE lacks {', '.join(missing)}")
    if many := sorted(operation.values.keys() - needed - {"pw_descriptor", "alpha1", "alpha2"}):
        raise bad(f"OPERATION_POINTWISE has {', '.join(many)}")


def computed(operation: Native, x: Array, b: Array | None = None) -> Array:
    """Return what a pointwise operation makes of its operands."""
    steps = operation.one("pw_descriptor")
    mode = PointwiseMode(steps.one("mode"))
    if mode == PointwiseMode.RELU_FWD and not steps.one("nan_propagation"):
        x = np.where(np.isnan(x), x.dtype.type(0), x)
    if b is None:
        return UNARY[mode](
            x, *(x.dtype.type(steps.one(name, usual)) for name, usual in _COEFFICIENTS.items())
        )
    alphas = (x.dtype.type(operation.one(name, 1.0)) for name in ("alpha1", "alpha2"))
    return BINARY[mode](*(alpha * value for alpha, value in zip(alphas, (x, b), strict=True)))


def refusal(
    x: TensorSpec,
    w: FilterSpec,
    conv: ConvolutionSpec,
    scalars: tuple[float, float],
    chain: tuple[Native, ...],
    *,
    narrow: bool,
) -> str:
    """Return why an H200 has no engine for a convolution with pointwise operations behind it; empty if it has one.

    `scalars` are the convolution's alpha and beta, `chain` the operations behind it in order, and `narrow` tells whether it
    is an engine that multiplies on tensor cores.
    """
    wide = DataType.DOUBLE if x.dtype == DataType.DOUBLE else DataType.FLOAT
    y = spec_of(chain[-1].one("ydesc"))
    betweens = {spec_of(operation.one("xdesc")).dtype for operation in chain}
    precisions = {DataType(operation.one("pw_descriptor").one("math_prec")) for operation in chain}
    if scalars != (1.0, 0.0):
        return "a scalar at the convolution, with operations behind it"
    if {conv.compute_type} | betweens | precisions != {wide}:
        return f"operations behind a convolution are computed in {wide.name}, and so are the tensors between"
    kinds = [_kind(operation, y) for operation in chain]
    operands = {y.dtype} | {
        spec_of(operation.one("bdesc")).dtype for operation in chain if "bdesc" in operation.values
    }
    if "" in kinds or operands != {x.dtype}:
        return "an operand of another type, layout or shape than the result's, a value for each channel, or one value"
    alphas = [(operation.one("alpha1", 1.0), operation.one("alpha2", 1.0)) for operation in chain]
    rest = kinds[1:] if kinds[0] == "added image" else kinds
    built_in = rest in (["added channels"], ["added channels", "built in"])
    if built_in and {(1.0, 1.0), *alphas[len(kinds) - len(rest) :]} == {(1.0, 1.0)}:
        return ""  # the addition of an image may have scalars
    if {*alphas} != {(1.0, 1.0)}:
        return "scalars elsewhere than at the addition of an image before a bias"
    last, bfloat16 = CHANNELS_LAST[x.rank], x.dtype == DataType.BFLOAT16
    if (
        x.dtype == DataType.DOUBLE
        or not (x.fits(last) and y.fits(last))
        or w.format != TensorFormat.NHWC
    ):
        return (
            "these operations have engines with channels last in memory alone, and none in float64"
        )
    if conv.mode == ConvolutionMode.CONVOLUTION or (bfloat16 and w.shape[1] == 1):
        return "these operations have no engines behind a rotated filter, nor behind a depthwise one in bfloat16"
    if not narrow and (bfloat16 or x.rank == 5):
        return "these operations in bfloat16, and in three dimensions, have engines with tensor cores alone"
    return ""


def _kind(operation: Native, y: TensorSpec) -> str:
    """Return what an operation is, as far as engines care; empty where nothing is known of such."""
    mode = PointwiseMode(operation.one("pw_descriptor").one("mode"))
    if mode in UNARY:
        return "built in" if mode in _BUILT_IN else "function"
    b = spec_of(operation.one("bdesc"))
    what = "added" if mode == PointwiseMode.ADD else "multiplied"
    if b.shape == y.shape and same_strides(y.shape, y.strides, b.strides):
        return f"{what} image" if what == "added" else ""
    if b.shape == (1, y.shape[1], *[1] * (y.rank - 2)):
        return f"{what} channels"
    return f"{what} number" if b.size == 1 and what == "added" else ""
