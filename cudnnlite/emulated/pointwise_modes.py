"""The modes of pointwise operations in NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from cudnnlite._raw.enums import PointwiseMode
from cudnnlite.emulated.backend import BackendObject

Array = np.ndarray[Any, Any]
_ROOT_OF_TWO_OVER_PI = math.sqrt(2 / math.pi)


def _clipped(x: Array, pointwise: BackendObject) -> Any:
    lower = pointwise.value("relu_lower_clip", 0.0)
    upper = pointwise.value("relu_upper_clip", math.inf)
    slope = pointwise.value("relu_lower_clip_slope", 0.0)
    below = lower + slope * (x - lower) if slope else np.full_like(x, lower)
    clipped = np.minimum(np.where(x > lower, x, below), upper).astype(x.dtype)
    if not pointwise.value("nan_propagation"):
        return clipped
    return np.where(np.isnan(x), x, clipped)


def _sigmoid(x: Array) -> Any:
    return 1 / (1 + np.exp(-x))


def _erf(x: Array) -> Array:
    flat = [math.erf(value) for value in x.ravel().tolist()]
    result: Array = np.array(flat, x.dtype).reshape(x.shape)
    return result


def _gelu(x: Array) -> Array:
    half = x.dtype.type(0.5)
    result: Array = half * x * (1 + _erf(x * x.dtype.type(math.sqrt(0.5))))
    return result


def _gelu_by_tanh(x: Array) -> Any:
    inner = _ROOT_OF_TWO_OVER_PI * (x + 0.044715 * x**3)
    return (0.5 * x * (1 + np.tanh(inner))).astype(x.dtype)


UNARY: Mapping[PointwiseMode, Callable[[Array, BackendObject], Any]] = {
    PointwiseMode.ABS: lambda x, _: np.abs(x),
    PointwiseMode.CEIL: lambda x, _: np.ceil(x),
    PointwiseMode.COS: lambda x, _: np.cos(x),
    PointwiseMode.EXP: lambda x, _: np.exp(x),
    PointwiseMode.FLOOR: lambda x, _: np.floor(x),
    PointwiseMode.LOG: lambda x, _: np.log(x),
    PointwiseMode.NEG: lambda x, _: -x,
    PointwiseMode.RSQRT: lambda x, _: 1 / np.sqrt(x),
    PointwiseMode.SIN: lambda x, _: np.sin(x),
    PointwiseMode.SQRT: lambda x, _: np.sqrt(x),
    PointwiseMode.TAN: lambda x, _: np.tan(x),
    PointwiseMode.ERF: lambda x, _: _erf(x),
    PointwiseMode.IDENTITY: lambda x, _: x,
    PointwiseMode.RECIPROCAL: lambda x, _: 1 / x,
    PointwiseMode.LOGICAL_NOT: lambda x, _: np.logical_not(x),
    PointwiseMode.RELU_FWD: _clipped,
    PointwiseMode.TANH_FWD: lambda x, _: np.tanh(x),
    PointwiseMode.SIGMOID_FWD: lambda x, _: _sigmoid(x),
    PointwiseMode.ELU_FWD: lambda x, pointwise: np.where(
        x > 0, x, pointwise.value("elu_alpha", 1.0) * np.expm1(np.minimum(x, 0))
    ).astype(x.dtype),
    PointwiseMode.GELU_FWD: lambda x, _: _gelu(x),
    PointwiseMode.GELU_APPROX_TANH_FWD: lambda x, _: _gelu_by_tanh(x),
    PointwiseMode.SOFTPLUS_FWD: lambda x, pointwise: (
        np.logaddexp(0, pointwise.value("softplus_beta", 1.0) * x)
        / pointwise.value("softplus_beta", 1.0)
    ).astype(x.dtype),
    PointwiseMode.SWISH_FWD: lambda x, pointwise: (
        x * _sigmoid(pointwise.value("swish_beta", 1.0) * x)
    ).astype(x.dtype),
}
BINARY: Mapping[PointwiseMode, Callable[[Array, Array], Array]] = {
    PointwiseMode.ADD: np.add,
    PointwiseMode.ADD_SQUARE: lambda x, b: x + np.square(b),
    PointwiseMode.ATAN2: np.arctan2,
    PointwiseMode.DIV: np.divide,
    PointwiseMode.FLOOR_MOD: np.mod,
    PointwiseMode.MAX: np.maximum,
    PointwiseMode.MIN: np.minimum,
    PointwiseMode.MOD: np.fmod,
    PointwiseMode.MUL: np.multiply,
    PointwiseMode.POW: np.power,
    PointwiseMode.SUB: np.subtract,
    PointwiseMode.CMP_EQ: np.equal,
    PointwiseMode.CMP_NEQ: np.not_equal,
    PointwiseMode.CMP_GT: np.greater,
    PointwiseMode.CMP_GE: np.greater_equal,
    PointwiseMode.CMP_LT: np.less,
    PointwiseMode.CMP_LE: np.less_equal,
    PointwiseMode.LOGICAL_AND: np.logical_and,
    PointwiseMode.LOGICAL_OR: np.logical_or,
}


def _relu_slope(x: Array, pointwise: BackendObject) -> Any:
    lower = pointwise.value("relu_lower_clip", 0.0)
    upper = pointwise.value("relu_upper_clip", math.inf)
    below = pointwise.value("relu_lower_clip_slope", 0.0)
    return np.where(x > lower, np.where(x < upper, 1.0, 0.0), below)


def _swish_slope(x: Array, pointwise: BackendObject) -> Any:
    beta = pointwise.value("swish_beta", 1.0)
    gate = _sigmoid(beta * x)
    return gate + beta * x * gate * (1 - gate)


def _elu_slope(x: Array, pointwise: BackendObject) -> Any:
    return np.where(x > 0, 1.0, pointwise.value("elu_alpha", 1.0) * np.exp(np.minimum(x, 0)))


def _gelu_slope(x: Array, _: BackendObject) -> Any:
    density = np.exp(-np.square(x) / 2) / math.sqrt(2 * math.pi)
    return 0.5 * (1 + _erf(x / math.sqrt(2))) + x * density


def _gelu_by_tanh_slope(x: Array, _: BackendObject) -> Any:
    tanh = np.tanh(_ROOT_OF_TWO_OVER_PI * (x + 0.044715 * x**3))
    inner_slope = _ROOT_OF_TWO_OVER_PI * (1 + 3 * 0.044715 * x**2)
    return 0.5 * (1 + tanh) + 0.5 * x * (1 - np.square(tanh)) * inner_slope


# The derivative of an activation, by the mode of its gradient.
SLOPES: Mapping[PointwiseMode, Callable[[Array, BackendObject], Any]] = {
    PointwiseMode.RELU_BWD: _relu_slope,
    PointwiseMode.TANH_BWD: lambda x, _: 1 - np.square(np.tanh(x)),
    PointwiseMode.SIGMOID_BWD: lambda x, _: _sigmoid(x) * (1 - _sigmoid(x)),
    PointwiseMode.ELU_BWD: _elu_slope,
    PointwiseMode.SOFTPLUS_BWD: lambda x, pointwise: _sigmoid(
        pointwise.value("softplus_beta", 1.0) * x
    ),
    PointwiseMode.SWISH_BWD: _swish_slope,
    PointwiseMode.GELU_BWD: _gelu_slope,
    PointwiseMode.GELU_APPROX_TANH_BWD: _gelu_by_tanh_slope,
}
MODES = frozenset({*UNARY, *BINARY, *SLOPES, PointwiseMode.BINARY_SELECT, PointwiseMode.GEN_INDEX})
