"""Random calls of pooling, activations and softmax."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from device.problems import LAST

import cudnnlite as dnn
from fuzz.random_call import Call
from fuzz.random_comparison import Expected
from fuzz.random_convolutions import sigmoid
from fuzz.random_draw import Array, Draw, Shape, dtype_of, largest_of

# ---------------------------------------------------------------- pooling

POOLING = (
    "max",
    "max_deterministic",
    "average_count_include_padding",
    "average_count_exclude_padding",
)


def _windows_of(size: int, taps: int, pads: tuple[int, int], step: int, *, ceil_mode: bool) -> int:
    """Return how many windows an axis has."""
    room = size + sum(pads) - taps
    if not ceil_mode:
        return room // step + 1
    count = -(-room // step) + 1
    # The last window begins in the image, or in the padding before it.
    return count - ((count - 1) * step >= size + pads[0])


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
        # An average that counts padding has no last window that reaches beyond it.
        is_plain = self.mode != "average_count_include_padding" or not any(map(any, self.pads))
        is_even = all(low == high for low, high in self.pads)
        ceil_mode = is_plain and is_even and d.chance(0.15)
        self.spec = dnn.PoolingSpec(
            self.window,
            padding=padding,
            stride=self.stride,
            mode=self.mode,
            ceil_mode=ceil_mode,
        )
        self.counts_padding = self.mode == "average_count_include_padding" and not ceil_mode
        axes = zip(images[2:], self.window, self.pads, self.stride, strict=True)
        self.out = tuple(
            _windows_of(size, w, pads, s, ceil_mode=ceil_mode) for size, w, pads, s in axes
        )

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
        if self.counts_padding:
            return float(np.prod(self.window))
        return float(np.prod(window.shape[2:]))

    def places(self, x: Array) -> Array:
        """Return the place of the maximum within each window, row by row, padding included."""
        places = np.empty((*x.shape[:2], *self.out))
        for place, window in self.windows():
            first = [
                at * step - low
                for at, step, (low, _) in zip(place[2:], self.stride, self.pads, strict=True)
            ]
            values = x[window].reshape(*x.shape[:2], -1)
            in_image = np.unravel_index(values.argmax(-1), x[window].shape[2:])
            in_window = [
                index + max(-start, 0) for index, start in zip(in_image, first, strict=True)
            ]
            places[place] = np.ravel_multi_index(in_window, self.window)
        return places

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
                # The sum may overflow where the average does not.
                unclear[place] = np.abs(values).sum(axes) > 1e37
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
    # cuDNN's search begins with the least finite value, which nothing in such a window exceeds.
    is_least = y <= -largest_of(dtype_of(dtype))
    indices = Expected(
        pooling.places(x),
        None,
        "int32",
        open=unclear | is_least,
        name="indices",
        is_exact=True,
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
    # Windows that share a pixel add gradients of several sizes, also in 16 bits: a sum may overflow
    # on the way, before alpha or behind it, and each addition may lose a denormal number.
    unclear |= 2 * magnitude > largest_of(plain)
    floor = 1.2e-38 * float(np.prod(pooling.window))
    expected = Expected(dx, magnitude, dtype, open=unclear, factor=4.0, floor=floor)
    return Call(d, "pooling_backward", [expected], {"pooling": pooling.spec}, True)


# ---------------------------------------------------------------- activations and softmax


def _activation(d: Draw) -> tuple[Any, Callable[[Array], Array], Callable[[Array], Array], float]:
    """Return a spec, the function, its slope, and the coefficient."""
    mode = d.pick(("sigmoid", "relu", "tanh", "clipped_relu", "elu", "swish"))
    coef = d.pick((0.5, 1.5)) if mode in ("clipped_relu", "elu", "swish") else None
    c = coef or 0.0
    functions: dict[str, tuple[Any, Any]] = {
        "sigmoid": (sigmoid, lambda x: sigmoid(x) * sigmoid(-x)),
        "relu": (lambda x: np.maximum(x, 0), lambda x: (x > 0) * 1.0),
        "tanh": (np.tanh, lambda x: 1 - np.tanh(x) ** 2),
        "clipped_relu": (lambda x: np.clip(x, 0, c), lambda x: ((x > 0) & (x < c)) * 1.0),
        "elu": (
            lambda x: np.where(x > 0, x, c * np.expm1(x)),
            lambda x: np.where(x > 0, 1.0, c * np.exp(np.minimum(x, 0))),
        ),
        "swish": (
            lambda x: np.where(np.isneginf(x), 0.0, x * sigmoid(c * x)),
            lambda x: sigmoid(c * x) + c * x * sigmoid(c * x) * sigmoid(-c * x),
        ),
    }
    return dnn.ActivationSpec(mode, coef), *functions[mode], c


# What 1 + x may be off by, and the exponential function besides.
_ROUNDINGS = {"float64": 2.0**-51, "float32": 2.0**-22}


def activation_forward(d: Draw) -> Call:
    images, dtype = d.images(), d.dtype()
    activation, function, _, _ = _activation(d)
    x = d.operand("x", images, dtype)
    values = function(x)
    magnitude = np.abs(values) + np.minimum(np.abs(x), 1.0)
    is_clip = "RELU" in activation.mode.name
    unclear = np.isnan(x) if is_clip else np.isinf(x) & (activation.mode.name == "SWISH")
    # An H200 computes coef * (exp(x) - 1), which is 0 for values that 1 + x loses.
    is_elu = activation.mode.name == "ELU"
    lost = activation.coef * _ROUNDINGS["float64" if dtype == "float64" else "float32"]
    expected = Expected(values, magnitude, dtype, open=unclear, floor=lost if is_elu else 0.0)
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


LAYERS: dict[str, Callable[[Draw], Any]] = {
    function.__name__: function
    for function in (
        pooling_forward,
        pooling_with_indices_forward,
        pooling_backward,
        activation_forward,
        activation_backward,
        softmax_forward,
        softmax_backward,
    )
}
