"""Random calls of normalisations over neighbours and over batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from graph_oracles import normalization_gradients
from samples import reference_of

import cudnnlite as dnn
from fuzz.random_call import Call, blended
from fuzz.random_comparison import Expected
from fuzz.random_convolutions import WITHOUT_BFLOAT16
from fuzz.random_draw import Array, Draw, Shape, dtype_of

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


def lost_of_running_sums(x: Array, norm: Any, dtype: str) -> Array:
    """Return what sums over channels may be off by, since a kernel goes from channel to channel.

    It adds the square that enters the window and subtracts the one that leaves it, so that a large
    value leaves its rounding in all channels behind it, or its infinity.  On an H200 nine random
    calls, in every layout, were off in the places where that changes a sum; none were where a
    window has one channel.
    """
    if norm.n == 1:
        return np.zeros(x.shape)
    squares = x * x
    if dtype != "float64":
        squares = squares.astype(np.float32).astype(np.float64)  # which may be infinite
    behind = norm.n - 1 - (norm.n - 1) // 2
    largest = np.maximum.accumulate(squares, axis=1)
    places = np.minimum(np.arange(x.shape[1]) + behind, x.shape[1] - 1)
    rounding = 2.0**-50 if dtype == "float64" else 2.0**-21
    return np.asarray(rounding * norm.alpha * x.shape[1] / norm.n * largest[:, places])


def lrn_forward(d: Draw) -> Call:
    images, dtype = d.images(), d.dtype()
    norm = _lrn(d)
    dtype = d.dtype(WITHOUT_BFLOAT16)
    x = d.operand("x", images, dtype)
    _, sums = _powers(x, norm)
    y = x / sums**norm.beta
    # The type of x is another one if it is drawn as the wrong one.
    lost = lost_of_running_sums(x, norm, d.operands["x"].host.dtype.name) / sums
    unclear = ~np.isfinite(sums) | (sums > 1e30) | ~(lost < 0.01)
    floor = np.where(unclear, 0.0, 2 * norm.beta * lost * np.abs(y))
    expected = Expected(y, None, dtype, open=unclear, factor=3.0, floor=floor)
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
        of_mean = Expected(mean, largest, wide, name="running_mean")
        unbiased = count / (count - 1)
        floor = 4 * of_variance * unbiased
        _average(d, call, of_mean, Expected(variance * unbiased, None, wide, floor=floor))
    if is_fused:
        call.verbs = ("call",)
    return call


def _average(d: Draw, call: Call, mean: Expected, variance: Expected) -> None:
    """Let a call update running statistics too."""
    momentum = d.pick((0.1, 1.0, 0.0))
    call.options = {**call.options, "momentum": momentum}
    expected = {"running_mean": mean, "running_var": variance}
    for name, now in expected.items():
        shape, dtype = now.values.shape, now.dtype
        old = d.operand(name, shape, dtype, packed=True, positive=name == "running_var")
        now.name = name
        expected[name] = blended(now, momentum, 1 - momentum, old)
    call.updated, call.in_place = expected, frozenset(expected)


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


NORMALIZATIONS: dict[str, Callable[[Draw], Any]] = {
    function.__name__: function
    for function in (
        lrn_forward,
        lrn_backward,
        divisive_normalization_forward,
        divisive_normalization_backward,
        batch_normalization_inference,
        batch_normalization_training,
        batch_normalization_backward,
    )
}
