"""Random calls of convolutions, their gradients, and layers, with sums over taps as oracles."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from device.problems import LAST
from graph_oracles import normalization_gradients
from samples import reference_of

import cudnnlite as dnn
from fuzz.random_draw import Array, Call, Draw, Expected, Shape, dtype_of

# ---------------------------------------------------------------- convolutions


def _windows(shape: Shape, taps: Shape, conv: Any, out: Shape) -> Iterator[tuple[Shape, Any]]:
    """Yield each tap's place in the filter, and the values of padded images that it meets."""
    _, stride, dilation = conv.steps(len(taps))
    flip = conv.mode == dnn.ConvolutionMode.CONVOLUTION
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


def _convolved(d: Draw, *, even: bool = False, groups: bool = True) -> tuple[Shape, Shape, Any]:
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


def _out_shape(images: Shape, w: Shape, conv: Any) -> Shape:
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
        values, magnitude, dtype, "product", spreads=True, floor=_floor(operands), **more
    )


def _floor(operands: tuple[Array, ...]) -> float:
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
    images, filters, conv = _convolved(d)
    dtype = d.dtype()
    x = d.operand("x", images, dtype)
    w = d.operand("w", filters, dtype, like=d.filters(filters, dtype, "x"))
    out = _out_shape(images, filters, conv)
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
        options["epilogue"] = epilogue
        values, magnitude = _activated(values, magnitude, EPILOGUES[epilogue])
    expected = _product(values, magnitude, dtype, operands)
    ways = WAYS if blends else ()
    return Call(d, "convolution_forward", [expected], options, blends, ways)


def _softplus(x: Array) -> Array:
    return np.logaddexp(0, x)


def _sigmoid(x: Array) -> Array:
    return np.where(np.isneginf(x), 0.0, 1 / (1 + np.exp(-x)))


def _gelu(x: Array) -> Array:
    from scipy.special import ndtr

    return np.where(np.isneginf(x), 0.0, x * ndtr(x))


def _gelu_tanh(x: Array) -> Array:
    return np.where(
        np.isneginf(x), 0.0, x / 2 * (1 + np.tanh(0.7978845608028654 * (x + 0.044715 * x**3)))
    )


def _swish(x: Array) -> Array:
    return np.where(np.isneginf(x), 0.0, x * _sigmoid(x))


EPILOGUES: dict[str, Callable[[Array], Array]] = {
    "relu": lambda x: np.maximum(x, 0),
    "tanh": np.tanh,
    "sigmoid": _sigmoid,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "swish": _swish,
    "elu": lambda x: np.where(x > 0, x, np.expm1(x)),
    "softplus": _softplus,
}


def _activated(
    values: Array, magnitude: Array, function: Callable[[Array], Array]
) -> tuple[Array, Array]:
    """Return what an activation makes of sums; its slope is at most about one.

    Where the sum is NaN kernels differ: some have zero as the ReLU of it.
    """
    return function(values), np.where(np.isnan(values), np.nan, 1.2 * magnitude + 1e-3)


def convolution_bias_activation_forward(d: Draw) -> Call:
    images, filters, conv = _convolved(d)
    dtype = d.dtype(("float32", "float16", "bfloat16", "float32"))
    x = d.operand("x", images, dtype)
    w = d.operand("w", filters, dtype, like=d.filters(filters, dtype, "x"))
    out = _out_shape(images, filters, conv)
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
    values, magnitude = _activated(values, magnitude, functions[mode])
    expected = _product(values, magnitude, dtype, (x, w))
    return Call(d, "convolution_bias_activation_forward", [expected], options)


def convolution_backward_data(d: Draw) -> Call:
    images, filters, conv = _convolved(d)
    dtype = d.dtype()
    w = d.operand("w", filters, dtype, packed=True)
    dy_shape = (images[0], filters[0], *_out_shape(images, filters, conv))
    is_last = d.operands["w"].spec is not None and d.operands["w"].spec.strides[1] == 1
    of_dy = dnn.TensorSpec(dy_shape, dtype, LAST[len(images)] if is_last else None)
    dy = d.operand("dy", dy_shape, dtype, like=of_dy if d.chance(0.5) else None)
    values = backward_data(images, w, dy, conv)
    magnitude = backward_data(images, *sizes_of(w, dy), conv)
    expected = _product(values, magnitude, dtype, (w, dy))
    options = {"conv": conv, "x": images}
    return Call(d, "convolution_backward_data", [expected], options, True, WAYS)


def convolution_transpose(d: Draw) -> Call:
    images, filters, conv = _convolved(d, even=True)
    dtype = d.dtype()
    rank = len(images) - 2
    dy_shape = (images[0], filters[0], *_out_shape(images, filters, conv))
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
    images, filters, conv = _convolved(d)
    dtype = d.dtype()
    x = d.operand("x", images, dtype)
    dy = d.operand("dy", (images[0], filters[0], *_out_shape(images, filters, conv)), dtype)
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
    out = _out_shape(images, filters, conv)
    columns = np.empty((images[1], *taps, images[0], *out))
    padded = _padded(x, conv)
    for place, window in _windows(images, taps, conv, out):
        columns[(slice(None), *place)] = padded[window].swapaxes(0, 1)
    values = columns.reshape(images[1] * int(np.prod(taps)), -1)
    expected = Expected(values, None, dtype, "copy", spec=dnn.TensorSpec(values.shape, dtype))
    return Call(d, "im2col", [expected], {"w": filters, "conv": conv})


# ---------------------------------------------------------------- pooling

POOLING = (
    "max",
    "max_deterministic",
    "average_count_include_padding",
    "average_count_exclude_padding",
)


class _Pooling:
    """A pooling that fits images, and the windows of its results."""

    def __init__(self, d: Draw, images: Shape, modes: tuple[str, ...] = POOLING) -> None:
        rank = len(images) - 2
        self.images = images
        self.window = tuple(d.integer(1, min(4, size + 1)) for size in images[2:])
        self.stride = tuple(d.pick((1, 2, 3)) for _ in range(rank))
        self.mode = d.pick(modes)
        self.pads = []
        for taps, size in zip(self.window, images[2:], strict=True):
            low = d.integer(0, taps - 1)
            low = max(low, -(-max(0, taps - size) // 2))
            uneven = rank == 2 and d.chance(0.05) and low + 1 < taps
            self.pads.append((low, low + uneven))
        padding = tuple(low if low == high else (low, high) for low, high in self.pads)
        self.spec = dnn.PoolingSpec(
            self.window, padding=padding, stride=self.stride, mode=self.mode
        )
        axes = zip(images[2:], self.window, self.pads, self.stride, strict=True)
        self.out = tuple((size + sum(pads) - w) // s + 1 for size, w, pads, s in axes)

    def windows(self) -> Iterator[tuple[Shape, Any]]:
        """Yield the places of outputs, and the slices of images beneath them."""
        for place in np.ndindex(*self.out):
            slices = []
            for at, size, w, (low, _), s in zip(
                place, self.images[2:], self.window, self.pads, self.stride, strict=True
            ):
                start = at * s - low
                slices.append(slice(max(start, 0), max(min(start + w, size), 0)))
            yield (slice(None), slice(None), *place), (slice(None), slice(None), *slices)

    def count(self, window: Array) -> float:
        """Return what sums of a window are divided by."""
        if self.mode == "average_count_include_padding":
            return float(np.prod(self.window))
        return float(np.prod(window.shape[2:]))

    def forward(self, x: Array) -> tuple[Array, Array, Array]:
        """Return results, their magnitudes, and where nothing is said of them."""
        y = np.empty((*x.shape[:2], *self.out))
        magnitude, unclear = np.zeros_like(y), np.zeros(y.shape, bool)
        axes = tuple(range(2, x.ndim))
        for place, window in self.windows():
            values = x[window]
            if values.size == 0:
                y[place], unclear[place] = 0, True
            elif "max" in self.mode:
                y[place] = values.max(axes)
                # A maximum of a NaN, and of a window of which nothing is above the least value.
                unclear[place] = np.isnan(values).any(axes) | np.isneginf(values.max(axes))
            else:
                y[place] = values.sum(axes) / self.count(values)
                magnitude[place] = np.abs(values).sum(axes) / self.count(values)
        return y, np.maximum(magnitude, np.abs(y)), unclear


def pooling_forward(d: Draw) -> Call:
    images = d.images(least_rank=4)
    pooling, dtype = _Pooling(d, images), d.dtype()
    x = d.operand("x", images, dtype)
    y, magnitude, unclear = pooling.forward(x)
    # Padded and averaged values of all sizes are summed in one order or another.
    expected = Expected(y, magnitude, dtype, open=unclear)
    return Call(d, "pooling_forward", [expected], {"pooling": pooling.spec}, True)


def pooling_with_indices_forward(d: Draw) -> Call:
    images = d.images(least_rank=4, most_rank=4)
    pooling, dtype = _Pooling(d, images, ("max",)), d.dtype(("float32", "float16"))
    x = d.operand("x", images, dtype, like=dnn.TensorSpec(images, dtype, "NHWC"))
    y, magnitude, unclear = pooling.forward(x)
    of_y = Expected(
        y, magnitude, dtype, "copy", open=unclear, spec=dnn.TensorSpec(y.shape, dtype, "NHWC")
    )
    indices = Expected(
        np.zeros(y.shape),
        None,
        "int32",
        open=True,
        name="indices",
        spec=dnn.TensorSpec(y.shape, "int32", "NHWC"),
    )
    options = {"pooling": pooling.spec}
    return Call(d, "pooling_with_indices_forward", [of_y, indices], options)


def _distinct(d: Draw, shape: Shape, dtype: str) -> Array:
    """Return values of which no two are equal, as far as the data type has so many."""
    size = int(np.prod(shape))
    return (d.rng.permutation(size).reshape(shape) - size // 2) * d.pick((0.5, 1.0, 0.125))


def pooling_backward(d: Draw) -> Call:
    images = d.images(least_rank=4, most=6)
    pooling, dtype = _Pooling(d, images), d.dtype()
    plain = dtype_of(dtype)
    first = _distinct(d, images, dtype).astype(plain).astype(np.float64)
    y = pooling.forward(first)[0]
    y = d.operand("y", y.shape, dtype, host=y)
    dy = d.operand("dy", y.shape, dtype, like=d.like("y", dtype))
    is_last = (d.operands["y"].spec or d.operands["dy"].spec).strides[1] == 1
    of_x = dnn.TensorSpec(images, dtype, LAST[len(images)] if is_last else None)
    x = d.operand("x", images, dtype, host=first, like=of_x if d.chance(0.8) else None)
    dx, magnitude, unclear = np.zeros(images), np.zeros(images), np.zeros(images, bool)
    for place, window in pooling.windows():
        values = x[window]
        shape = (*values.shape[:2], *(1,) * (x.ndim - 2))
        slope = dy[place].reshape(shape)
        if values.size == 0:
            continue
        if "max" in pooling.mode:
            of_y = y[place].reshape(shape)
            chosen = values == of_y
            unclear[window] |= chosen & (chosen.sum(tuple(range(2, x.ndim)), keepdims=True) > 1)
            unclear[window] |= ~chosen.any(tuple(range(2, x.ndim)), keepdims=True)
            dx[window] += np.where(chosen, slope, 0)
            magnitude[window] += np.where(chosen, np.abs(slope), 0)
        else:
            dx[window] += slope / pooling.count(values)
            magnitude[window] += np.abs(slope) / pooling.count(values)
    if d.wrong:
        unclear |= "max" in pooling.mode and not d.wrong.startswith("dy")
    # Windows that share a pixel add gradients of several sizes, also in 16 bits.
    expected = Expected(dx, magnitude, dtype, open=unclear, factor=4.0)
    return Call(d, "pooling_backward", [expected], {"pooling": pooling.spec}, True)


# ---------------------------------------------------------------- activations and softmax


def _activation(d: Draw) -> tuple[Any, Callable[[Array], Array], Callable[[Array], Array], float]:
    """Return a spec, the function, its slope, and the coefficient."""
    mode = d.pick(("sigmoid", "relu", "tanh", "clipped_relu", "elu", "swish"))
    coef = d.pick((0.5, 1.5)) if mode in ("clipped_relu", "elu", "swish") else None
    c = coef or 0.0
    functions: dict[str, tuple[Any, Any]] = {
        "sigmoid": (_sigmoid, lambda x: _sigmoid(x) * _sigmoid(-x)),
        "relu": (lambda x: np.maximum(x, 0), lambda x: (x > 0) * 1.0),
        "tanh": (np.tanh, lambda x: 1 - np.tanh(x) ** 2),
        "clipped_relu": (lambda x: np.clip(x, 0, c), lambda x: ((x > 0) & (x < c)) * 1.0),
        "elu": (
            lambda x: np.where(x > 0, x, c * np.expm1(x)),
            lambda x: np.where(x > 0, 1.0, c * np.exp(np.minimum(x, 0))),
        ),
        "swish": (
            lambda x: np.where(np.isneginf(x), 0.0, x * _sigmoid(c * x)),
            lambda x: _sigmoid(c * x) + c * x * _sigmoid(c * x) * _sigmoid(-c * x),
        ),
    }
    return dnn.ActivationSpec(mode, coef), *functions[mode], c


def activation_forward(d: Draw) -> Call:
    images, dtype = d.images(), d.dtype()
    activation, function, _, _ = _activation(d)
    x = d.operand("x", images, dtype)
    values = function(x)
    magnitude = np.abs(values) + np.minimum(np.abs(x), 1.0)
    is_clip = "RELU" in activation.mode.name
    unclear = np.isnan(x) if is_clip else np.isinf(x) & (activation.mode.name == "SWISH")
    expected = Expected(values, magnitude, dtype, open=unclear)
    return Call(d, "activation_forward", [expected], {"activation": activation}, True)


def activation_backward(d: Draw) -> Call:
    images, dtype = d.images(), d.dtype()
    activation, function, slope, coef = _activation(d)
    plain = dtype_of(dtype)
    x_host = d.values(images, plain)
    x = x_host.astype(np.float64)
    y = d.operand("y", images, dtype, host=function(x))
    dy = d.operand("dy", images, dtype, like=d.like("y", dtype))
    x = d.operand("x", images, dtype, host=x, like=d.like("y", dtype))
    dx = slope(x) * dy
    # Some of the slopes are computed from y, which is rounded.
    magnitude = np.abs(dy) * (1 + np.abs(np.where(np.isfinite(x), x, 0)))
    unclear = (x == 0) | (x == coef) | ~np.isfinite(x) | ~np.isfinite(dy) | ~np.isfinite(y)
    unclear |= np.abs(x - coef) < 1e-2
    unclear |= np.abs(x) < 1e-4
    unclear |= np.abs(x) > 1e30
    if d.wrong:
        unclear |= d.wrong[0] in "yx"
    expected = Expected(dx, magnitude, dtype, open=unclear, factor=2.0)
    return Call(d, "activation_backward", [expected], {"activation": activation}, True)


def _softmax(x: Array, axes: Any) -> tuple[Array, Array]:
    largest = x.max(axes, keepdims=True)
    powers = np.exp(x - largest)
    total = powers.sum(axes, keepdims=True)
    return powers / total, x - largest - np.log(total)


def _softmax_options(d: Draw, rank: int) -> tuple[dict[str, Any], Any]:
    algorithm = d.pick(("accurate", "log", "fast"))
    mode = d.pick(("channel", "instance"))
    return {"algorithm": algorithm, "mode": mode}, 1 if mode == "channel" else tuple(range(1, rank))


def softmax_forward(d: Draw) -> Call:
    images, dtype = d.images(), d.dtype()
    options, axes = _softmax_options(d, len(images))
    x = d.operand("x", images, dtype)
    plain, logarithm = _softmax(x, axes)
    is_log = options["algorithm"] == "log"
    # A row that holds no finite value, and one that overflows where nothing is subtracted first.
    unclear = ~np.isfinite(x).all(axes, keepdims=True)
    if options["algorithm"] == "fast":
        unclear = unclear | (np.abs(x).max(axes, keepdims=True) > 10)
    unclear = np.broadcast_to(unclear, x.shape)
    sizes = np.abs(x).max(axes, keepdims=True) + 1
    magnitude = (np.abs(logarithm) + sizes) if is_log else plain * np.minimum(sizes, 1e3)
    values = logarithm if is_log else plain
    unclear = unclear | (np.broadcast_to(sizes, x.shape) > 1e30)
    expected = Expected(values, magnitude, dtype, open=unclear)
    return Call(d, "softmax_forward", [expected], options, True)


def softmax_backward(d: Draw) -> Call:
    images, dtype = d.images(), d.dtype()
    d.is_plain = True
    options, axes = _softmax_options(d, len(images))
    plain, logarithm = _softmax(d.rng.standard_normal(images), axes)
    is_log = options["algorithm"] == "log"
    y = d.operand("y", images, dtype, host=logarithm if is_log else plain)
    dy = d.operand("dy", images, dtype, like=d.like("y", dtype))
    if is_log:
        sums = dy.sum(axes, keepdims=True)
        dx, magnitude = (
            dy - np.exp(y) * sums,
            np.abs(dy) + np.exp(y) * np.abs(dy).sum(axes, keepdims=True),
        )
    else:
        sums = (y * dy).sum(axes, keepdims=True)
        dx = y * (dy - sums)
        magnitude = np.abs(y) * (np.abs(dy) + np.abs(y * dy).sum(axes, keepdims=True))
    expected = Expected(dx, magnitude, dtype, factor=2.0)
    return Call(d, "softmax_backward", [expected], options, True)


# ---------------------------------------------------------------- normalisation over neighbours


def _across_channels(channels: int, n: int) -> Array:
    places = np.arange(channels)
    before = (n - 1) // 2
    first = places[:, None] - before
    return ((places >= first) & (places < first + n)) * 1.0


def _lrn(d: Draw, odd: bool = False) -> Any:
    n = d.pick((1, 3, 5) if odd else (1, 2, 3, 4, 5, 16))
    return dnn.LRNSpec(n, d.pick((0.01, 1.0)), d.pick((0.5, 0.75, 1.0)), d.pick((1.0, 1.5)))


def _powers(x: Array, norm: Any) -> tuple[Array, Array]:
    window = _across_channels(x.shape[1], norm.n)
    sums = norm.k + norm.alpha / norm.n * np.einsum("jc,nc...->nj...", window, x * x)
    return window, sums


def lrn_forward(d: Draw) -> Call:
    images, dtype = d.images(), d.dtype()
    norm = _lrn(d)
    dtype = d.dtype(WITHOUT_BFLOAT16)
    x = d.operand("x", images, dtype)
    _, sums = _powers(x, norm)
    y = x / sums**norm.beta
    unclear = ~np.isfinite(sums) | (sums > 1e30)
    expected = Expected(y, None, dtype, open=unclear, factor=3.0)
    return Call(d, "lrn_forward", [expected], {"norm": norm}, True)


def lrn_backward(d: Draw) -> Call:
    images, dtype = d.images(), d.dtype()
    norm = _lrn(d)
    dtype = d.dtype(WITHOUT_BFLOAT16)
    d.is_plain = True
    plain = dtype_of(dtype)
    x = d.values(images, plain).astype(np.float64)
    d.operand("y", images, dtype, host=x / _powers(x, norm)[1] ** norm.beta)
    dy = d.operand("dy", images, dtype, like=d.like("y", dtype))
    x = d.operand("x", images, dtype, host=x, like=d.like("y", dtype))
    window, sums = _powers(x, norm)
    first = dy * sums**-norm.beta
    inner = np.einsum("jc,nj...->nc...", window, dy * x * sums ** (-norm.beta - 1))
    inner_size = np.einsum("jc,nj...->nc...", window, np.abs(dy * x) * sums ** (-norm.beta - 1))
    factor = 2 * norm.alpha * norm.beta / norm.n
    dx, magnitude = first - factor * x * inner, np.abs(first) + factor * np.abs(x) * inner_size
    expected = Expected(dx, magnitude, dtype, factor=3.0, open=d.wrong.startswith("y"))
    return Call(d, "lrn_backward", [expected], {"norm": norm}, True)


def divisive_normalization_forward(d: Draw) -> Call:
    images, dtype = d.images(least_rank=4, most=5), d.dtype(WITHOUT_BFLOAT16)
    norm = _lrn(d)
    d.is_plain = True
    x = d.operand("x", images, dtype)
    means = None
    if d.chance(0.5):
        means = d.operand("means", images, dtype, like=d.operands["x"].spec)
    (y,) = reference_of("divisive_normalization_forward")(x, norm=norm, means=means)
    sizes = np.abs(y) * (1 + (0 if means is None else np.abs(means)))
    expected = Expected(y, sizes, dtype, factor=3.0)
    return Call(d, "divisive_normalization_forward", [expected], {"norm": norm}, True)


def divisive_normalization_backward(d: Draw) -> Call:
    images, dtype = d.images(least_rank=4, most=5), d.dtype(WITHOUT_BFLOAT16)
    norm = _lrn(d, odd=True)
    d.is_plain = True
    x = d.operand("x", images, dtype)
    dy = d.operand("dy", images, dtype, like=d.operands["x"].spec)
    (dx,) = reference_of("divisive_normalization_backward")(x, dy, norm=norm)
    magnitude = np.full(images, np.abs(dx).max() + np.abs(dy).max())
    expected = Expected(dx, magnitude, dtype, factor=3.0)
    return Call(d, "divisive_normalization_backward", [expected], {"norm": norm}, True)


# ---------------------------------------------------------------- batch normalisation


def _batch_norm(d: Draw) -> tuple[Shape, str, Shape, Any, str]:
    images = d.images(least_rank=4)
    mode = d.pick(("spatial", "spatial", "per_activation", "spatial_persistent"))
    is_each = mode == "per_activation"
    statistics = (1, *images[1:]) if is_each else (1, images[1], *(1,) * (len(images) - 2))
    axes = (0,) if is_each else (0, *range(2, len(images)))
    dtype = d.dtype()
    return images, dtype, statistics, axes, mode


def _wider(dtype: str) -> str:
    return "float64" if dtype == "float64" else "float32"


def batch_normalization_inference(d: Draw) -> Call:
    images, dtype, statistics, _, mode = _batch_norm(d)
    x = d.operand("x", images, dtype)
    scale, bias, mean = (
        d.operand(name, statistics, _wider(dtype), packed=True)
        for name in ("scale", "bias", "mean")
    )
    variance = d.operand("variance", statistics, _wider(dtype), packed=True, positive=True)
    epsilon = d.pick((1e-5, 1e-3, 0.5))
    inverse = 1 / np.sqrt(variance + epsilon)
    y = bias + scale * (x - mean) * inverse
    magnitude = np.abs(bias) + np.abs(scale) * (np.abs(x) + np.abs(mean)) * inverse
    # An infinite variance, and products that overflow on the way.
    sizes = np.abs(scale) * np.maximum(np.abs(x) + np.abs(mean), 1) * np.maximum(inverse, 1)
    unclear = (sizes > 1e30) | ~np.isfinite(variance) | (variance > 1e30)
    unclear |= ~np.isfinite(sizes + bias)
    expected = Expected(y, magnitude, dtype, open=unclear, factor=2.0)
    options = {"mode": mode, "epsilon": epsilon}
    return Call(d, "batch_normalization_inference", [expected], options, True)


def _training_values(d: Draw) -> None:
    if d.kind not in ("normal", "large", "offset", "rows", "zero"):
        d.kind = "normal"


def _count(images: Shape, axes: Any) -> int:
    return int(np.prod([images[axis] for axis in axes]))


def batch_normalization_training(d: Draw) -> Call:
    images, dtype, statistics, axes, mode = _batch_norm(d)
    _training_values(d)
    wide = _wider(dtype)
    options: dict[str, Any] = {"mode": mode, "epsilon": d.pick((1e-3, 0.5))}
    is_fused = d.chance(0.2) and dtype != "float64"
    like = None
    if is_fused:
        images = (images[0], d.pick((4, 8, 16)), *images[2:4])
        statistics, axes = (1, images[1], 1, 1), (0, 2, 3)
        options["mode"] = "spatial_persistent"
        like = dnn.TensorSpec(images, dtype, "NHWC")
    x = d.operand("x", images, dtype, like=like)
    scale, bias = (d.operand(name, statistics, wide, packed=True) for name in ("scale", "bias"))
    count = _count(images, axes)
    mean, variance = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    largest = np.abs(x).max(axes, keepdims=True)
    inverse = 1 / np.sqrt(variance + options["epsilon"])
    y = bias + scale * (x - mean) * inverse
    # The mean is off by its rounding, and so is the variance, whose square of a large mean cancels.
    spread = 3e-7 if wide == "float32" else 1e-15
    of_variance = spread * (largest**2 + 1)
    of_inverse = of_variance * inverse**3 + spread
    floor = np.abs(scale) * (spread * largest * inverse + np.abs(x - mean) * of_inverse) * 4
    magnitude = np.abs(bias) + np.abs(scale * (x - mean)) * inverse
    unclear: Any = of_variance > 0.05 * (variance + options["epsilon"])
    if is_fused:
        options["activation"] = "relu"
        if d.chance(0.5):
            z = d.operand("z", images, dtype, like=like)
            y, magnitude = y + z, magnitude + np.abs(z)
        y = np.maximum(y, 0)
    results = [
        Expected(y, magnitude, dtype, open=unclear, floor=floor, factor=2.0, spec=like),
        Expected(mean, largest, wide, name="saved_mean", spec=dnn.TensorSpec(statistics, wide)),
        Expected(
            inverse, inverse, wide, name="saved_inv_variance", open=unclear, floor=4 * of_inverse,
            spec=dnn.TensorSpec(statistics, wide),
        ),
    ]  # fmt: skip
    call = Call(d, "batch_normalization_training", results, options)
    if d.chance(0.5) and count > 1:
        _averaged(d, call, statistics, wide, mean, variance * count / (count - 1))
    if is_fused:
        call.verbs = ("call",)
    return call


def _averaged(
    d: Draw, call: Call, statistics: Shape, wide: str, mean: Array, variance: Array
) -> None:
    """Let a call update running statistics too."""
    momentum = d.pick((0.1, 1.0, 0.0))
    call.options = {**call.options, "momentum": momentum}
    d.operand("running_mean", statistics, wide, packed=True)
    d.operand("running_var", statistics, wide, packed=True, positive=True)
    call.in_place = frozenset({"running_mean", "running_var"})


def batch_normalization_backward(d: Draw) -> Call:
    images, dtype, statistics, axes, mode = _batch_norm(d)
    d.is_plain = True
    wide = _wider(dtype)
    x = d.operand("x", images, dtype)
    dy = d.operand("dy", images, dtype, like=d.operands["x"].spec if d.chance(0.7) else None)
    scale = d.operand("scale", statistics, wide, packed=True)
    epsilon = 0.5
    mean, variance = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    mean = d.operand("saved_mean", statistics, wide, packed=True, host=mean)
    inverse = d.operand(
        "saved_inv_variance", statistics, wide, packed=True, host=1 / np.sqrt(variance + epsilon)
    )
    results = normalization_gradients(dy, x, scale, mean, inverse, axes, centered=True)
    sizes = np.abs(dy).sum(axes, keepdims=True) * (1 + np.abs((x - mean) * inverse).max())
    magnitude = np.broadcast_to(np.abs(scale) * inverse * (sizes + np.abs(dy)), images)
    # With one value, x - mean is 0 and so is everything.
    expected = [
        Expected(results[0], magnitude, dtype, name="dx"),
        Expected(results[1], sizes, wide, name="dscale", spec=dnn.TensorSpec(statistics, wide)),
        Expected(results[2], sizes, wide, name="dbias", spec=dnn.TensorSpec(statistics, wide)),
    ]
    options = {"mode": mode, "epsilon": epsilon}
    return Call(d, "batch_normalization_backward", expected, options)


LAYERS: dict[str, Callable[[Draw], Any]] = {
    function.__name__: function
    for function in (
        convolution_forward,
        convolution_bias_activation_forward,
        convolution_backward_data,
        convolution_transpose,
        convolution_backward_filter,
        convolution_backward_bias,
        im2col,
        pooling_forward,
        pooling_with_indices_forward,
        pooling_backward,
        activation_forward,
        activation_backward,
        softmax_forward,
        softmax_backward,
        lrn_forward,
        lrn_backward,
        divisive_normalization_forward,
        divisive_normalization_backward,
        batch_normalization_inference,
        batch_normalization_training,
        batch_normalization_backward,
    )
}
