"""Random calls of operations that are graphs: products, normalisations, attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from graph_oracles import (
    attention,
    attention_bias_gradient,
    attention_gradients,
    causal_mask,
    normalization_gradients,
    window_mask,
)

import cudnnlite as dnn
from fuzz.random_call import Call
from fuzz.random_comparison import Expected
from fuzz.random_convolutions import EPILOGUES, activated, lost_denormals
from fuzz.random_draw import NARROW, Array, Draw, Shape

# ---------------------------------------------------------------- products


def _sizes(d: Draw) -> tuple[Shape, Shape, Shape]:
    """Return the shapes of a, b and their product."""
    rank = d.pick((2, 3, 3, 4))
    batch = tuple(d.pick((1, 2, 3)) for _ in range(rank - 2))
    m, k, n = (d.pick((1, 2, 3, 8, 8, 16, 17, 24, 32, 40)) for _ in range(3))
    b_batch = batch if d.chance(0.7) else (1,) * len(batch)
    return (*batch, m, k), (*b_batch, k, n), (*batch, m, n)


def _product(
    name: str, values: Array, magnitude: Array, dtype: str, operands: tuple[Array, ...]
) -> Expected:
    return Expected(
        values, magnitude, dtype, "product", spreads=True, name=name, floor=lost_denormals(operands)
    )


def _result_dtype(d: Draw, dtype: str, options: dict[str, Any]) -> str:
    if dtype != "float32" and d.chance(0.3):
        options["dtype"] = "float32"
        return "float32"
    return dtype


def matmul(d: Draw) -> Call:
    first, second, result = _sizes(d)
    dtype = d.dtype(NARROW)
    a, b = (
        d.operand(name, shape, dtype, like=d.matrices(shape, dtype))
        for name, shape in (("a", first), ("b", second))
    )
    alpha = d.pick((1.0, 1.0, 0.5))
    values, magnitude = alpha * (a @ b), alpha * (np.abs(a) @ np.abs(b))
    options: dict[str, Any] = {"alpha": alpha} if alpha != 1 else {}
    written = _result_dtype(d, dtype, options)
    if d.chance(0.3):
        shape = (*(1,) * (len(result) - 1), result[-1]) if d.chance(0.7) else result
        bias = d.operand("bias", shape, dtype, packed=True)
        values, magnitude = values + bias, magnitude + np.abs(bias)
    if d.chance(0.3):
        functions = EPILOGUES | {"leaky_relu": lambda x: np.where(x > 0, x, 0.01 * x)}
        activation = d.pick((*functions,))
        options["activation"] = activation
        values, magnitude = activated(values, magnitude, functions[activation])
    return Call(d, "matmul", [_product("y", values, magnitude, written, (a, b))], options)


def _gradient_sizes(d: Draw) -> tuple[Shape, Shape, Shape, str]:
    first, second, result = _sizes(d)
    return first, second, result, d.dtype(NARROW)


def _summed(x: Array, shape: Shape) -> Array:
    axes = tuple(axis for axis, size in enumerate(shape) if size == 1 and x.shape[axis] > 1)
    return x.sum(axes, keepdims=True) if axes else x


def matmul_backward_a(d: Draw) -> Call:
    first, second, result, dtype = _gradient_sizes(d)
    dy, b = (
        d.operand(name, shape, dtype, like=d.matrices(shape, dtype))
        for name, shape in (("dy", result), ("b", second))
    )
    options: dict[str, Any] = {"a": first}
    written = _result_dtype(d, dtype, options)
    values = dy @ b.swapaxes(-1, -2)
    magnitude = np.abs(dy) @ np.abs(b).swapaxes(-1, -2)
    return Call(
        d, "matmul_backward_a", [_product("da", values, magnitude, written, (dy, b))], options
    )


def matmul_backward_b(d: Draw) -> Call:
    first, second, result, dtype = _gradient_sizes(d)
    dy, a = (
        d.operand(name, shape, dtype, like=d.matrices(shape, dtype))
        for name, shape in (("dy", result), ("a", first))
    )
    options: dict[str, Any] = {"b": second}
    written = _result_dtype(d, dtype, options)
    values = _summed(a.swapaxes(-1, -2) @ dy, second)
    magnitude = _summed(np.abs(a).swapaxes(-1, -2) @ np.abs(dy), second)
    return Call(
        d, "matmul_backward_b", [_product("db", values, magnitude, written, (dy, a))], options
    )


# ---------------------------------------------------------------- normalisations


def _normalized(d: Draw, kind: str) -> tuple[Shape, Shape, Any, str]:
    """Return the shapes of x and of the scale, the axes, and a data type."""
    dtype = d.dtype(NARROW)
    if kind == "INSTANCE":
        images = (d.size(3), d.pick((1, 3, 4, 8)), d.size(6), d.size(6))
        return images, (1, images[1], 1, 1), (2, 3), dtype
    images = (d.size(4), d.pick((1, 2, 4, 8, 16, 24, 32, 64)), d.pick((1, 1, 3)), d.pick((1, 1, 2)))
    return images, (1, *images[1:]), (1, 2, 3), dtype


def _moderate(d: Draw) -> None:
    if d.kind not in ("normal", "large", "offset", "rows", "zero"):
        d.kind = "normal"


def _forward(kind: str, d: Draw) -> Call:
    name = f"{kind.lower()}_normalization_forward"
    images, scaled, axes, dtype = _normalized(d, kind)
    _moderate(d)
    x = d.operand("x", images, dtype)
    scale = d.operand("scale", scaled, "float32", packed=True)
    bias: Any = 0.0
    if kind != "RMS" or d.chance(0.3):
        bias = d.operand("bias", scaled, "float32", packed=True)
    epsilon = d.pick((1e-5, 1e-3))
    training = d.chance(0.4)
    centered = kind != "RMS"
    mean = x.mean(axes, keepdims=True) if centered else np.zeros((1,) * x.ndim)
    variance = np.square(x - mean).mean(axes, keepdims=True)
    inverse = 1 / np.sqrt(variance + epsilon)
    largest = np.abs(x).max(axes, keepdims=True)
    # The mean is rounded, and what is near to it loses digits.
    spread = 6e-7 if centered else 0.0
    of_mean = spread * largest
    of_inverse = inverse**3 * (of_mean**2 + of_mean * np.sqrt(variance)) + 1e-6 * inverse
    floor = np.abs(scale) * (of_mean * inverse + np.abs(x - mean) * of_inverse) * 2
    values = scale * (x - mean) * inverse + bias
    magnitude = np.abs(scale * (x - mean) * inverse) + np.abs(bias)
    options = {"epsilon": epsilon, "training": training}
    results = [Expected(values, magnitude, dtype, floor=floor)]
    if training:
        packed = dnn.TensorSpec(inverse.shape, "float32")
        if centered:
            results.append(Expected(mean, largest, "float32", name="mean", spec=packed))
        results.append(
            Expected(
                inverse, inverse, "float32", floor=of_inverse * 2, name="inv_variance", spec=packed
            )
        )
    return Call(d, name, results, options)


def _backward(kind: str, d: Draw) -> Call:
    name = f"{kind.lower()}_normalization_backward"
    images, scaled, axes, dtype = _normalized(d, kind)
    d.is_plain = True
    dy = d.operand("dy", images, dtype)
    x = d.operand("x", images, dtype)
    scale = d.operand("scale", scaled, "float32", packed=True)
    centered = kind != "RMS"
    mean: Any = np.zeros((1,) * x.ndim)
    if centered:
        mean = d.operand(
            "mean", _kept(images, axes), "float32", packed=True, host=x.mean(axes, keepdims=True)
        )
    variance = np.square(x - mean).mean(axes, keepdims=True)
    inverse = d.operand(
        "inv_variance",
        _kept(images, axes),
        "float32",
        packed=True,
        host=1 / np.sqrt(variance + 0.5),
    )
    results = normalization_gradients(dy, x, scale, mean, inverse, axes, centered=centered)
    normalized = (x - mean) * inverse
    others = tuple(axis for axis, size in enumerate(scaled) if size == 1)
    size = np.abs(dy * scale).max(axes, keepdims=True) * (1 + np.abs(normalized) + normalized**2)
    size = inverse * size.max(axes, keepdims=True) * np.ones(images)
    of_scale = (np.abs(dy) * (np.abs(normalized) + 0.1)).sum(others, keepdims=True)
    spec = dnn.TensorSpec(scaled, "float32")
    expected = [
        Expected(results[0], size, dtype, name="dx"),
        Expected(results[1], of_scale, "float32", name="dscale", spec=spec),
    ]
    if centered:
        size = np.abs(dy).sum(others, keepdims=True)
        expected.append(Expected(results[2], size, "float32", name="dbias", spec=spec))
    return Call(d, name, expected)


def _kept(images: Shape, axes: Any) -> Shape:
    return tuple(1 if axis in axes else size for axis, size in enumerate(images))


# ---------------------------------------------------------------- attention


class _Attention:
    """Operands and options of scaled dot-product attention."""

    def __init__(self, d: Draw, dtypes: Any, backward: bool) -> None:
        d.is_plain = True
        self.dtype = dtype = d.pick(dtypes)
        batch, heads = d.size(2), d.pick((1, 1, 2, 4))
        shared = d.pick((1, 1, heads))
        size = d.pick((8, 16, 16, 32, 64))
        rows, columns = d.pick((1, 2, 9, 16, 33)), d.pick((1, 8, 9, 16, 40))
        self.shape = (batch, heads, rows, size)
        of_keys = (batch, heads // shared, columns, size)
        self.q, self.k, self.v = (
            d.operand(name, shape, dtype, like=self.view(d, shape))
            for name, shape in zip("qkv", (self.shape, of_keys, of_keys), strict=True)
        )
        self.options: dict[str, Any] = {}
        self.scale = size**-0.5
        if d.chance(0.3):
            self.scale = self.options["scale"] = 0.5
        mask = np.ones((rows, columns), bool)
        if d.chance(0.3):
            bottom_right = columns >= rows and d.chance(0.3)
            self.options["causal"] = "bottom_right" if bottom_right else True
            mask &= causal_mask(rows, columns, bottom_right=bottom_right)
            if not bottom_right and columns >= rows and d.chance(0.3):  # no row is without keys
                window = self.options["window"] = d.pick((1, 3, columns))
                mask &= window_mask(rows, columns, window)
        self.bias: Any = 0.0
        self.mask: Any = np.broadcast_to(mask, (batch, heads, rows, columns))
        self.lengths: Any = np.full(batch, rows)
        if d.chance(0.3):
            shape = (d.pick((1, batch)), d.pick((1, heads)), rows, columns)
            self.bias = d.operand("bias", shape, dtype, packed=True)
        elif not self._has_fixed_mask() and d.chance(0.2):
            self._lengths(d, batch, rows, columns)

    def view(self, d: Draw, shape: Shape) -> dnn.TensorSpec:
        """Return a spec whose last axis is packed; heads before steps, or behind, or with gaps.

        Once in a while it is any other.
        """
        if d.chance(0.05):
            return d.spec(shape, self.dtype)
        _, heads, steps, size = shape
        row = size + d.pick((0, 0, 8))
        if d.chance(0.4):
            strides = (steps * heads * row, row, heads * row, 1)
        else:
            strides = (heads * steps * row, steps * row, row, 1)
        return dnn.TensorSpec(shape, self.dtype, strides=strides)

    def _has_fixed_mask(self) -> bool:
        """Whether there is a mask that goes with no lengths."""
        return "window" in self.options or self.options.get("causal") == "bottom_right"

    def _lengths(self, d: Draw, batch: int, rows: int, columns: int) -> None:
        shape = (batch, 1, 1, 1)
        of_rows = d.rng.integers(1, rows + 1, shape)
        of_columns = d.rng.integers(1, columns + 1, shape)
        self.lengths = d.operand("q_lengths", shape, "int32", packed=True, host=of_rows).ravel()
        columns_kept = d.operand("kv_lengths", shape, "int32", packed=True, host=of_columns)
        self.mask = self.mask & (np.arange(columns) < columns_kept)

    def beyond(self, size: int) -> Array:
        """Return which rows are behind the end of a sequence of queries."""
        rows = np.arange(size)[:, None]
        return np.asarray(rows >= self.lengths[:, None, None, None])


def scaled_dot_product_attention_forward(d: Draw) -> Call:
    a = _Attention(d, ("float16", "bfloat16", "float16", "float32"), backward=False)
    o, stats, _ = attention(a.q, a.k, a.v, a.scale, a.mask, a.bias)
    unclear = np.broadcast_to(a.beyond(a.shape[2]), o.shape)
    # Probabilities are rounded to the data type of the operands.
    size = np.abs(a.v).max() + np.zeros(o.shape)
    results = [Expected(o, size, a.dtype, "product", name="o", open=unclear)]
    if d.chance(0.4):
        a.options["return_stats"] = True
        scores = np.abs(a.q).max() * np.abs(a.k).max() * a.scale * a.shape[-1]
        size = np.abs(stats) + scores + np.abs(a.bias).max()
        packed = dnn.TensorSpec(stats.shape, "float32")
        results.append(
            Expected(
                stats, size, "float32", "product", name="stats", open=unclear[..., :1], spec=packed
            )
        )
    results[0].spec = a.view(d, o.shape)
    return Call(d, "scaled_dot_product_attention_forward", results, a.options)


def scaled_dot_product_attention_backward(d: Draw) -> Call:
    a = _Attention(d, ("float16", "bfloat16"), backward=True)
    beyond = a.beyond(a.shape[2])
    o, stats, _ = attention(a.q, a.k, a.v, a.scale, a.mask, a.bias)
    do_host = np.where(beyond, 0, d.rng.standard_normal(o.shape))
    d.operand("o", o.shape, a.dtype, host=o, like=a.view(d, o.shape))
    do = d.operand("do", o.shape, a.dtype, host=do_host, like=a.view(d, o.shape))
    d.operand("stats", stats.shape, "float32", host=stats, packed=True)
    a.options.pop("return_stats", None)
    gradients = [*attention_gradients(a.q, a.k, a.v, do, a.scale, a.mask, a.bias)]
    names = ["dq", "dk", "dv"]
    if isinstance(a.bias, np.ndarray) and d.chance(0.7):
        a.options["return_dbias"] = True
        gradients.append(attention_bias_gradient(a.q, a.k, a.v, do, a.scale, a.mask, a.bias))
        names.append("dbias")
    unclear = d.wrong.split(" ")[0] in ("o", "stats")  # what was rounded is not what was computed
    sizes = [np.full(g.shape, np.abs(g).max() + np.abs(do).max()) for g in gradients]
    results = []
    for name, gradient, size in zip(names, gradients, sizes, strict=True):
        open_places: Any = unclear
        if name == "dq":
            open_places = unclear | np.broadcast_to(beyond, gradient.shape)
        results.append(
            Expected(
                gradient, size, a.dtype, "product", name=name, factor=4.0, open=open_places,
                spec=a.view(d, gradient.shape),
            )
        )  # fmt: skip
    return Call(d, "scaled_dot_product_attention_backward", results, a.options)


def _named(name: str, function: Callable[..., Any], kind: str) -> tuple[str, Callable[[Draw], Any]]:
    return name, lambda d: function(kind, d)


PRODUCTS: dict[str, Callable[[Draw], Any]] = {
    "matmul": matmul,
    "matmul_backward_a": matmul_backward_a,
    "matmul_backward_b": matmul_backward_b,
    "scaled_dot_product_attention_forward": scaled_dot_product_attention_forward,
    "scaled_dot_product_attention_backward": scaled_dot_product_attention_backward,
    **dict(
        _named(f"{kind.lower()}_normalization_{way}", function, kind)
        for kind in ("LAYER", "RMS", "INSTANCE")
        for way, function in (("forward", _forward), ("backward", _backward))
    ),
}
