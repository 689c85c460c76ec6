"""Random calls of convolutions and their gradients, with sums over taps as oracles."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from device.problems import LAST

import cudnnlite as dnn
from fuzz.random_call import Call
from fuzz.random_comparison import Expected
from fuzz.random_draw import Array, Draw, Shape


def _windows(shape: Shape, taps: Shape, conv: Any, out: Shape) -> Iterator[tuple[Shape, Any]]:
    """Yield each tap's place in the filter, and the values of padded images that it meets."""
    _, stride, dilation = conv.steps(len(taps))
    flip = conv.mode == dnn.enums.ConvolutionMode.CONVOLUTION
    for tap in np.ndindex(*taps):
        place = tuple(size - 1 - at for size, at in zip(taps, tap, strict=True)) if flip else tap
        steps = zip(tap, dilation, stride, out, strict=True)
        slices = (slice(t * d, t * d + (size - 1) * s + 1, s) for t, d, s, size in steps)
        yield place, (slice(None), slice(None), *slices)


def _pads(conv: Any, rank: int) -> list[tuple[int, int]]:
    pads = conv.pads(rank)
    return [(pad, pad) if isinstance(pad, int) else tuple(pad) for pad in pads]


def _padded(x: Array, conv: Any) -> Array:
    return np.pad(x, [(0, 0), (0, 0), *_pads(conv, x.ndim - 2)])


def _grouped(x: Array, groups: int) -> Array:
    return x.reshape(len(x), groups, x.shape[1] // groups, -1)


def forward(x: Array, w: Array, conv: Any, out: Shape) -> Array:
    """Return a convolution."""
    groups = conv.groups
    y = np.zeros((len(x), groups, len(w) // groups, int(np.prod(out))))
    padded = _padded(x, conv)
    for place, window in _windows(x.shape, w.shape[2:], conv, out):
        taps = w[(slice(None), slice(None), *place)].reshape(groups, -1, w.shape[1])
        y += taps @ _grouped(padded[window], groups)
    return y.reshape(len(x), len(w), *out)


def backward_data(shape: Shape, w: Array, dy: Array, conv: Any) -> Array:
    """Return the gradient of images."""
    groups = conv.groups
    pads = _pads(conv, len(shape) - 2)
    padded = _padded(np.zeros(shape), conv)
    grouped = _grouped(dy, groups)
    for place, window in _windows(shape, w.shape[2:], conv, dy.shape[2:]):
        taps = w[(slice(None), slice(None), *place)].reshape(groups, -1, w.shape[1])
        padded[window] += (taps.swapaxes(1, 2) @ grouped).reshape(*shape[:2], *dy.shape[2:])
    inner = (slice(low, low + size) for (low, _), size in zip(pads, shape[2:], strict=True))
    return padded[(slice(None), slice(None), *inner)]


def backward_filter(x: Array, shape: Shape, dy: Array, conv: Any) -> Array:
    """Return the gradient of a filter."""
    groups, dw = conv.groups, np.zeros(shape)
    padded, grouped = _padded(x, conv), _grouped(dy, groups)
    for place, window in _windows(x.shape, shape[2:], conv, dy.shape[2:]):
        images = _grouped(padded[window], groups)
        sums = (grouped @ images.swapaxes(2, 3)).sum(0)
        dw[(slice(None), slice(None), *place)] = sums.reshape(shape[:2])
    return dw


def sizes_of(*arrays: Array) -> list[Array]:
    """Return absolute values, with denormal ones as large as an error may make them."""
    return [np.abs(array) for array in arrays]


def convolved(d: Draw, *, even: bool = False, groups: bool = True) -> tuple[Shape, Shape, Any]:
    """Return the shapes of images and a filter, and a convolution that fits."""
    images = d.images()
    rank = len(images) - 2
    count = d.pick([g for g in (1, 1, 1, 2, images[1]) if images[1] % g == 0]) if groups else 1
    filters = count * d.pick((1, 2, 3, 4, 8) if count < 3 else (1, 2))
    taps = tuple(d.integer(1, 3 if rank > 2 else 4) for _ in range(rank))
    dilation = tuple(d.pick((1, 1, 2)) for _ in taps)
    stride = tuple(d.pick((1, 1, 2, 3)) for _ in taps)
    if d.chance(0.5):
        stride = dilation = (1,) * rank
    padding: list[Any] = []
    for size, tap, step in zip(images[2:], taps, dilation, strict=True):
        reach = (tap - 1) * step
        least = max(0, reach + 1 - size)
        low = d.integer(-(-least // 2), max(reach, -(-least // 2)))
        padding.append(low)
    if not even and d.chance(0.05):
        padding[0] = (padding[0], padding[0] + 1)
    conv = dnn.ConvolutionSpec(
        tuple(padding),
        stride,
        dilation,
        groups=count,
        mode=d.pick(("cross_correlation", "cross_correlation", "convolution")),
        math_type=d.pick(("default", "default", "fma", "tensor_op")),
    )
    return images, (filters, images[1] // count, *taps), conv


def out_shape(images: Shape, w: Shape, conv: Any) -> Shape:
    rank = len(images) - 2
    _, stride, dilation = conv.steps(rank)
    axes = zip(images[2:], w[2:], _pads(conv, rank), stride, dilation, strict=True)
    return tuple(
        (size + sum(pads) - (tap - 1) * wide - 1) // step + 1
        for size, tap, pads, step, wide in axes
    )


def _product(
    values: Array, magnitude: Array, dtype: str, operands: tuple[Array, ...], **more: Any
) -> Expected:
    """Return the result of sums of products; zeros may be made of denormal operands."""
    return Expected(
        values, magnitude, dtype, "product", spreads=True, floor=lost_denormals(operands), **more
    )


def _lost(values: Array, magnitude: Array, dtype: str) -> Array | bool:
    """Return where engine 47 may write 0: below -65504 no float16 is right, nor -inf instead.

    An alpha of -2 to 2 may follow.
    """
    if dtype != "float16":
        return False
    lost: Array = np.abs(values) + 0.01 * magnitude > 65504 / 2
    return lost


def lost_denormals(operands: tuple[Array, ...]) -> float:
    """Return what may be lost where kernels make zeros of denormal values."""
    largest = [np.abs(a[np.isfinite(a)]).max(initial=0.0) for a in operands]
    smallest = 0.0
    for place, a in enumerate(operands):
        denormal = np.abs(a[(a != 0) & (np.abs(a) < 1.2e-38)])
        others = [size for other, size in enumerate(largest) if other != place]
        with np.errstate(over="ignore"):
            smallest += denormal.sum() * float(np.prod(others))
    return smallest


WAYS = ("find", "heuristic")
WITHOUT_BFLOAT16 = ("float32", "float16", "float64")


def convolution_forward(d: Draw) -> Call:
    images, filters, conv = convolved(d)
    dtype = d.dtype()
    x = d.operand("x", images, dtype)
    w = d.operand("w", filters, dtype, like=d.filters(filters, dtype, "x"))
    out = out_shape(images, filters, conv)
    values = forward(x, w, conv, out)
    magnitude = forward(*sizes_of(x, w), conv, out)
    options: dict[str, Any] = {"conv": conv}
    blends = True
    operands: tuple[Array, ...] = (x, w)
    if d.chance(0.2):
        blends = False
        if d.chance(0.6):
            bias = d.operand("bias", (1, filters[0], *(1,) * len(out)), dtype, packed=True)
            values, magnitude = values + bias, magnitude + np.abs(bias)
        epilogue = d.pick((*EPILOGUES,))
        options["activation"] = epilogue
        values, magnitude = activated(values, magnitude, EPILOGUES[epilogue])
    expected = _product(values, magnitude, dtype, operands, open=_lost(values, magnitude, dtype))
    ways = WAYS if blends else ()
    return Call(d, "convolution_forward", [expected], options, blends, ways)


def _softplus(x: Array) -> Array:
    return np.logaddexp(0, x)


def sigmoid(x: Array) -> Array:
    return np.where(np.isneginf(x), 0.0, 1 / (1 + np.exp(-x)))


def _gelu(x: Array) -> Array:
    from scipy.special import ndtr

    return np.where(np.isneginf(x), 0.0, x * ndtr(x))


def _gelu_tanh(x: Array) -> Array:
    return np.where(
        np.isneginf(x), 0.0, x / 2 * (1 + np.tanh(0.7978845608028654 * (x + 0.044715 * x**3)))
    )


def _swish(x: Array) -> Array:
    return np.where(np.isneginf(x), 0.0, x * sigmoid(x))


EPILOGUES: dict[str, Callable[[Array], Array]] = {
    "relu": lambda x: np.maximum(x, 0),
    "tanh": np.tanh,
    "sigmoid": sigmoid,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "swish": _swish,
    "elu": lambda x: np.where(x > 0, x, np.expm1(x)),
    "softplus": _softplus,
}


def activated(
    values: Array, magnitude: Array, function: Callable[[Array], Array]
) -> tuple[Array, Array]:
    """Return what an activation makes of sums; its slope is at most about one.

    Where the sum is NaN kernels differ: some have zero as the ReLU of it.
    """
    return function(values), np.where(np.isnan(values), np.nan, 1.2 * magnitude + 1e-3)


def convolution_bias_activation_forward(d: Draw) -> Call:
    images, filters, conv = convolved(d)
    dtype = d.dtype(("float32", "float16", "bfloat16", "float32"))
    x = d.operand("x", images, dtype)
    w = d.operand("w", filters, dtype, like=d.filters(filters, dtype, "x"))
    out = out_shape(images, filters, conv)
    bias = d.operand("bias", (1, filters[0], *(1,) * len(out)), dtype, packed=True)
    alpha = d.pick((1.0, 1.0, 0.5, -2.0))
    values = alpha * forward(x, w, conv, out) + bias
    magnitude = abs(alpha) * forward(*sizes_of(x, w), conv, out) + np.abs(bias)
    mode = d.pick(("relu", "relu", "identity"))
    if d.chance(0.2):
        mode = d.pick(("tanh", "sigmoid", "elu", "clipped_relu", "swish"))
    coef = {"clipped_relu": 1.5, "elu": d.pick((1.0, 0.5)), "swish": 1.0}.get(mode)
    options: dict[str, Any] = {"conv": conv, "activation": dnn.ActivationSpec(mode, coef)}
    if alpha != 1:
        options["alpha"] = alpha
    if d.chance(0.3):
        last = d.operands["x"].spec is not None and d.operands["x"].spec.strides[1] == 1
        of_z = dnn.TensorSpec(values.shape, dtype, LAST[values.ndim] if last else None)
        z = d.operand("z", values.shape, dtype, like=of_z)
        scale = d.pick((1.0, 0.5))
        options["alpha2"] = scale
        values, magnitude = values + scale * z, magnitude + np.abs(z)
    functions = EPILOGUES | {
        "identity": lambda v: v,
        "clipped_relu": lambda v: np.clip(v, 0, 1.5),
        "elu": lambda v: np.where(v > 0, v, (coef or 0) * np.expm1(v)),
    }
    values, magnitude = activated(values, magnitude, functions[mode])
    open_places = _lost(values, magnitude, dtype)
    expected = _product(values, magnitude, dtype, (x, w), open=open_places)
    return Call(d, "convolution_bias_activation_forward", [expected], options)


def convolution_backward_data(d: Draw) -> Call:
    images, filters, conv = convolved(d)
    dtype = d.dtype()
    w = d.operand("w", filters, dtype, packed=True)
    dy_shape = (images[0], filters[0], *out_shape(images, filters, conv))
    is_last = d.operands["w"].spec is not None and d.operands["w"].spec.strides[1] == 1
    of_dy = dnn.TensorSpec(dy_shape, dtype, LAST[len(images)] if is_last else None)
    dy = d.operand("dy", dy_shape, dtype, like=of_dy if d.chance(0.5) else None)
    values = backward_data(images, w, dy, conv)
    magnitude = backward_data(images, *sizes_of(w, dy), conv)
    expected = _product(values, magnitude, dtype, (w, dy))
    options = {"conv": conv, "x": images}
    return Call(d, "convolution_backward_data", [expected], options, True, WAYS)


def convolution_transpose(d: Draw) -> Call:
    images, filters, conv = convolved(d, even=True)
    dtype = d.dtype()
    rank = len(images) - 2
    dy_shape = (images[0], filters[0], *out_shape(images, filters, conv))
    x = d.operand("x", dy_shape, dtype)
    w = d.operand("w", filters, dtype, like=d.filters(filters, dtype, "x"))
    padding, stride, dilation = conv.steps(rank)
    axes = zip(dy_shape[2:], stride, padding, dilation, filters[2:], images[2:], strict=True)
    more = tuple(
        size - ((n - 1) * step - 2 * pad + wide * (tap - 1) + 1)
        for n, step, pad, wide, tap, size in axes
    )
    values = backward_data(images, w, x, conv)
    magnitude = backward_data(images, *sizes_of(w, x), conv)
    options = {"conv": conv, "output_padding": more}
    expected = _product(values, magnitude, dtype, (x, w))
    return Call(d, "convolution_transpose", [expected], options, True)


def convolution_backward_filter(d: Draw) -> Call:
    images, filters, conv = convolved(d)
    dtype = d.dtype()
    x = d.operand("x", images, dtype)
    dy = d.operand("dy", (images[0], filters[0], *out_shape(images, filters, conv)), dtype)
    values = backward_filter(x, filters, dy, conv)
    magnitude = backward_filter(np.abs(x), filters, np.abs(dy), conv)
    expected = _product(values, magnitude, dtype, (x, dy), spec=dnn.TensorSpec(filters, dtype))
    options = {"conv": conv, "w": filters}
    return Call(d, "convolution_backward_filter", [expected], options, True, WAYS)


def convolution_backward_bias(d: Draw) -> Call:
    images, dtype = d.images(), d.dtype()
    dy = d.operand("dy", images, dtype)
    axes = (0, *range(2, dy.ndim))
    values, magnitude = dy.sum(axes, keepdims=True), np.abs(dy).sum(axes, keepdims=True)
    spec = dnn.TensorSpec(values.shape, dtype)
    expected = Expected(values, magnitude, dtype, spec=spec)
    return Call(d, "convolution_backward_bias", [expected], blends=True)


def im2col(d: Draw) -> Call:
    images = d.images(most_rank=4, least_rank=4)
    dtype = d.dtype()
    taps = tuple(d.integer(1, 3) for _ in images[2:])
    padding = tuple(
        max(d.integer(0, 1), tap - size) for tap, size in zip(taps, images[2:], strict=True)
    )
    conv = dnn.ConvolutionSpec(
        padding,
        tuple(d.pick((1, 2)) for _ in taps),
        mode=d.pick(("cross_correlation", "convolution")),
    )
    x = d.operand("x", images, dtype)
    filters = (d.integer(1, 4), images[1], *taps)
    out = out_shape(images, filters, conv)
    columns = np.empty((images[1], *taps, images[0], *out))
    padded = _padded(x, conv)
    for place, window in _windows(images, taps, conv, out):
        columns[(slice(None), *place)] = padded[window].swapaxes(0, 1)
    values = columns.reshape(images[1] * int(np.prod(taps)), -1)
    expected = Expected(values, None, dtype, "copy", spec=dnn.TensorSpec(values.shape, dtype))
    return Call(d, "im2col", [expected], {"w": filters, "conv": conv})


CONVOLUTIONS: dict[str, Callable[[Draw], Any]] = {
    function.__name__: function
    for function in (
        convolution_forward,
        convolution_bias_activation_forward,
        convolution_backward_data,
        convolution_transpose,
        convolution_backward_filter,
        convolution_backward_bias,
        im2col,
    )
}
