"""Random calls of arithmetic on whole tensors, transformers of images, and dropout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from samples import reference_of

import cudnnlite as dnn
from cudnnlite.dtypes import dtype_name
from fuzz.random_call import Call
from fuzz.random_comparison import Expected, WrongError, compare
from fuzz.random_convolutions import WITHOUT_BFLOAT16
from fuzz.random_draw import Array, Draw, Shape, wide


def _beside(d: Draw, images: Shape) -> Shape:
    """Return the shape of an operand that is repeated along some axes."""
    return tuple(1 if d.chance(0.5) else size for size in images)


def add_tensor(d: Draw) -> Call:
    images, dtype = d.images(), d.dtype()
    a = d.operand("a", _beside(d, images), dtype)
    c = d.operand("c", images, dtype)
    alpha, beta = d.pick((1.0, 1.0, 0.5, -2.0)), d.pick((1.0, 1.0, 0.5, 0.0))
    values = alpha * a + (beta * c if beta else 0.0)
    magnitude = np.abs(alpha * a) + np.abs(beta * c if beta else 0.0)
    expected = Expected(values + np.zeros(images), magnitude + np.zeros(images), dtype)
    return _in_place(Call(d, "add_tensor", [expected], {"alpha": alpha, "beta": beta}), "c")


def _in_place(call: Call, name: str) -> Call:
    call.out, call.in_place = False, frozenset({name})
    return call


def scale_tensor(d: Draw) -> Call:
    images, dtype = d.images(), d.dtype()
    y = d.operand("y", images, dtype)
    alpha = d.pick((1.0, 0.5, -2.0, 0.0, 1e4))
    # A factor of zero may set everything to zero.
    expected = Expected(alpha * y, None, dtype, open=(alpha == 0) & ~np.isfinite(y))
    return _in_place(Call(d, "scale_tensor", [expected], {"alpha": alpha}), "y")


def set_tensor(d: Draw) -> Call:
    images, dtype = d.images(), d.dtype((*("float32", "float16", "bfloat16", "float64"), "int8"))
    y = d.operand("y", images, dtype)
    value = d.pick((1.5, 0.0, -3.0, 100.0))
    stored = np.full(y.shape, value)
    if d.operands["y"].host.dtype.kind in "iu":
        value = abs(round(value))
        stored = np.full(y.shape, float(value))
    expected = Expected(stored, None, dtype)
    return _in_place(Call(d, "set_tensor", [expected], {"value": value}), "y")


def op_tensor(d: Draw) -> Call:
    images, dtype = d.images(), d.dtype()
    op = d.pick(("add", "mul", "min", "max", "sqrt", "not"))
    a = d.operand("a", images, dtype, positive=op == "sqrt")
    b = d.operand("b", images if op in ("sqrt", "not") else _beside(d, images), dtype)
    alpha1, alpha2 = d.pick((1.0, 1.0, 2.0)), d.pick((1.0, 1.0, -0.5))
    one, other = alpha1 * a, alpha2 * np.broadcast_to(b, a.shape)
    functions: dict[str, Callable[[], Array]] = {
        "add": lambda: one + other,
        "mul": lambda: one * other,
        "min": lambda: np.minimum(one, other),
        "max": lambda: np.maximum(one, other),
        "sqrt": lambda: np.sqrt(one),
        "not": lambda: 1 - one,
    }
    magnitude = np.abs(one) + np.abs(other) if op in ("add", "min", "max") else np.abs(one) + 1
    if op == "mul":
        magnitude = np.abs(one * other)
    unclear = np.zeros(images, bool)
    if op in ("min", "max"):
        unclear = np.isnan(one) | np.isnan(other)
    elif op == "mul" and dtype != "float64":
        # A factor that is scaled first may become infinite in float32.
        unclear = np.maximum(np.abs(one), np.abs(other)) > 3.4e38
    options = {"op": op, "alpha1": alpha1, "alpha2": alpha2}
    expected = Expected(functions[op](), magnitude, dtype, open=unclear)
    return Call(d, "op_tensor", [expected], options)


REDUCTIONS = ("add", "mul", "min", "max", "amax", "avg", "norm1", "norm2", "mul_no_zeros")


def reduce_tensor(d: Draw) -> Call:
    images, dtype = d.images(), d.dtype(WITHOUT_BFLOAT16)
    a = d.operand("a", images, dtype)
    op = d.pick(REDUCTIONS)
    longer = [axis for axis, size in enumerate(images) if size > 1] or [0]
    axes = tuple(axis for axis in range(len(images)) if d.chance(0.6)) or (d.pick(longer),)
    if d.chance(0.8):
        axes = (*{*axes, d.pick(longer)},)
    sizes = np.abs(a)
    functions: dict[str, Callable[[Array], Array]] = {
        "add": lambda x: x.sum(axes, keepdims=True),
        "mul": lambda x: x.prod(axes, keepdims=True),
        "min": lambda x: x.min(axes, keepdims=True),
        "max": lambda x: x.max(axes, keepdims=True),
        "amax": lambda x: np.abs(x).max(axes, keepdims=True),
        "avg": lambda x: x.mean(axes, keepdims=True),
        "norm1": lambda x: np.abs(x).sum(axes, keepdims=True),
        "norm2": lambda x: np.sqrt((x * x).sum(axes, keepdims=True)),
        "mul_no_zeros": lambda x: np.where(x == 0, 1.0, x).prod(axes, keepdims=True),
    }
    values = functions[op](a)
    finite = np.isfinite(a).all(axes, keepdims=True)
    summed = op in ("add", "avg", "norm1", "norm2")
    magnitude = sizes.sum(axes, keepdims=True) / (1 if op != "avg" else a.size / values.size)
    if not summed:
        magnitude = np.abs(values)
    factor = 1.0
    unclear: Any = np.zeros(values.shape, bool)
    if op in ("min", "max", "amax"):
        unclear = np.isnan(a).any(axes, keepdims=True)
    elif not summed or op == "norm2":
        # Products and squares overflow or vanish on the way, in an order that is the kernel's.
        extreme = (sizes > 1e3) | ((sizes < 1e-3) & (sizes > 0))
        unclear = extreme.any(axes, keepdims=True) | ~finite
        # "mul_no_zeros" leaves out a product that vanished, too.
        factors = np.where(sizes > 0, sizes, 1.0)
        least = np.minimum(factors, 1).prod(axes, keepdims=True)
        most = np.maximum(factors, 1).prod(axes, keepdims=True)
        unclear |= (least < 1e-37) | (most > 1e37)
        factor = 10.0
    if summed:
        unclear = unclear | (np.isinf(a).any(axes, keepdims=True))
        unclear |= magnitude > 1e37
    expected = Expected(values, magnitude, dtype, open=unclear, factor=factor)
    options: dict[str, Any] = {"op": op, "axes": axes}
    return Call(d, "reduce_tensor", [expected], options, True)


def transform_tensor(d: Draw) -> Call:
    images, dtype = d.images(), d.dtype()
    x = d.operand("x", images, dtype)
    options: dict[str, Any] = {}
    result = dtype
    if d.chance(0.3):
        options["dtype"] = result = d.dtype()
    elif d.chance(0.2):
        options["layout"] = {3: "NWC", 4: "NHWC", 5: "NDHWC"}[len(images)]
    elif d.wrong:
        result = dtype_name(d.operands["x"].spec.dtype) if d.operands["x"].spec else dtype
    kind = "widened copy" if result == "float64" else "copy"
    expected = Expected(x, None, result, kind)
    return Call(d, "transform_tensor", [expected], options, True)


def transform_filter(d: Draw) -> Call:
    shape = (d.size(6), d.size(6), d.size(4), d.size(4))
    dtype = d.dtype()
    w = d.operand("w", shape, dtype, packed=True)
    options = {"layout": d.pick(("NHWC", "NCHW"))}
    result = dtype
    if d.chance(0.2):
        options["dtype"] = result = d.dtype()
    spec = dnn.TensorSpec(shape, result, options["layout"])
    expected = Expected(w, None, result, "copy", spec=spec)
    return Call(d, "transform_filter", [expected], options, True)


# ---------------------------------------------------------------- spatial transformers


def _transformer(d: Draw) -> tuple[Shape, Shape, str]:
    images = (d.size(3), d.size(4), d.integer(2, 6), d.integer(2, 6))
    return images, (*images[:2], d.integer(2, 5), d.integer(2, 5)), d.dtype(WITHOUT_BFLOAT16)


def spatial_transformer_grid(d: Draw) -> Call:
    images, points, dtype = _transformer(d)
    theta = d.operand("theta", (images[0], 2, 3), dtype, packed=True)
    spec = dnn.SpatialTransformerSpec(points)
    (values,) = reference_of("spatial_transformer_grid")(theta, transformer=spec)
    # Where these sums overflow, what is added first decides: `compare` leaves the values open.
    magnitude = np.broadcast_to(np.abs(theta).sum(-1)[:, None, None], values.shape)
    # An infinity times a place that is nearly zero.
    unclear = ~np.isfinite(theta).all((1, 2))[:, None, None, None]
    expected = _packed(Expected(values, magnitude, dtype, open=unclear))
    return Call(d, "spatial_transformer_grid", [expected], {"transformer": points})


def _packed(expected: Expected) -> Expected:
    return replace(expected, spec=dnn.TensorSpec(expected.values.shape, expected.dtype))


def spatial_transformer_grid_backward(d: Draw) -> Call:
    images, points, dtype = _transformer(d)
    dgrid = d.operand("dgrid", (images[0], *points[2:], 2), dtype, packed=True)
    spec = dnn.SpatialTransformerSpec(points)
    (values,) = reference_of("spatial_transformer_grid_backward")(dgrid, transformer=spec)
    magnitude = np.broadcast_to(np.abs(dgrid).sum((1, 2))[..., None], values.shape)
    unclear = ~np.isfinite(dgrid).all((1, 2, 3))[:, None, None]
    expected = _packed(Expected(values, magnitude, dtype, open=unclear))
    return Call(d, "spatial_transformer_grid_backward", [expected], {"transformer": points})


def _grid(d: Draw, images: Shape, points: Shape, dtype: str) -> Array:
    """Draw places within the image; where a place is a pixel's own, slopes are not defined."""
    grid = d.rng.uniform(-1.2, 1.2, (images[0], *points[2:], 2))
    return d.operand("grid", grid.shape, dtype, packed=True, host=grid)


def _hats(grid: Array, size: int, axis: int) -> tuple[Array, Array, Array]:
    """Return the weights of pixels along an axis, their slopes, and how near to a kink."""
    place = (grid[..., axis, None] + 1) / 2 * (size - 1) - np.arange(size)
    hat = np.maximum(0, 1 - np.abs(place))
    slope = np.where(np.abs(place) < 1, -np.sign(place), 0) * (size - 1) / 2
    kink = np.minimum(np.abs(place), np.abs(np.abs(place) - 1)).min(-1)
    return hat, slope, kink


def spatial_transformer_sample(d: Draw) -> Call:
    images, points, dtype = _transformer(d)
    x = d.operand("x", images, dtype)
    d_kind, d.kind = d.kind, "normal"
    grid = _grid(d, images, points, dtype)
    d.kind = d_kind
    hats = [_hats(grid, images[3], 0)[0], _hats(grid, images[2], 1)[0]]
    values = np.einsum("nchw,nijw,nijh->ncij", x, *hats)
    size = np.abs(np.where(np.isfinite(x), x, 0)).max((2, 3))[..., None, None]
    unclear = ~np.isfinite(x).all((2, 3))[..., None, None] | d.wrong.startswith("grid")
    magnitude = size + 0 * np.abs(np.where(unclear, 0, values))
    expected = Expected(values, magnitude, dtype, open=unclear, factor=6.0)
    options = {"transformer": points}
    return Call(d, "spatial_transformer_sample", [expected], options, True)


def spatial_transformer_sample_backward(d: Draw) -> Call:
    images, points, dtype = _transformer(d)
    d.is_plain = True
    x = d.operand("x", images, dtype)
    grid = _grid(d, images, points, dtype)
    dy = d.operand("dy", points, dtype)
    across, of_across, kink = _hats(grid, images[3], 0)
    down, of_down, other_kink = _hats(grid, images[2], 1)
    dx = np.einsum("ncij,nijw,nijh->nchw", dy, across, down)
    sizes = np.einsum("ncij,nijw,nijh->nchw", np.abs(dy), across, down)
    # Weights are rounded, in float16 to some 1e-3 of a pixel.
    sizes = sizes + np.abs(dy).sum((2, 3))[..., None, None]
    dgrid = np.stack(
        [
            np.einsum("nchw,ncij,nijw,nijh->nij", x, dy, of_across, down),
            np.einsum("nchw,ncij,nijw,nijh->nij", x, dy, across, of_down),
        ],
        -1,
    )
    size = np.abs(x).max() * np.abs(dy).sum(1) * max(images[2:])
    # Beside a pixel's middle the slope is that of one side or the other, after rounding.
    near = np.minimum(kink, other_kink) < (0.05 if dtype in ("float16", "bfloat16") else 1e-3)
    unclear = np.repeat(near[..., None], 2, -1) | d.wrong.startswith("grid")
    results = [
        Expected(dx, sizes, dtype, name="dx", factor=6.0, open=d.wrong.startswith("grid")),
        _packed(
            Expected(
                dgrid,
                np.repeat(size[..., None], 2, -1),
                dtype,
                name="dgrid",
                factor=6.0,
                open=unclear,
            )
        ),
    ]
    return Call(d, "spatial_transformer_sample_backward", results, {"transformer": points})


# ---------------------------------------------------------------- dropout


class Dropout:
    """A forward and a backward call, which drop the same values."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.verb = draw.pick(("call", "call", "plan"))
        self.texts: list[str] = []
        self.also: list[str] = []

    def run(self) -> None:
        """Make both calls."""
        d = self.draw
        handle, images, dtype = d.handle, d.images(), d.dtype(WITHOUT_BFLOAT16)
        probability = d.pick((0.0, 0.25, 0.5, 0.9))
        x = d.operand("x", images, dtype)
        dy = d.operand("dy", images, dtype, like=d.operands["x"].spec)
        arrays = {name: d.place(operand) for name, operand in d.operands.items()}
        self.texts = [f"dropout {probability} {d.operands['x'].spec} {self.verb} {d.kind}"]
        d.tell(self.texts)
        state = dnn.DropoutState(handle, seed=d.integer(0, 9))
        if self.verb == "plan":
            with dnn.dropout_forward.plan(
                handle, arrays["x"], probability, dropout_state=state
            ) as plan:
                y, reserve = plan(arrays["x"])
        else:
            y, reserve = dnn.dropout_forward(handle, arrays["x"], probability, dropout_state=state)
        got = wide(y.numpy())
        scale = 1 / (1 - probability)
        if probability == 0:
            kept = np.ones(images, bool)
        else:
            kept = (got != 0) | np.isnan(got)
        # A zero is kept or dropped; both are zero, and so may be what is denormal.
        small = np.abs(np.nan_to_num(x)) < 1e-4
        unclear = ~np.isfinite(x)
        values = np.where(kept, x * scale, 0.0)
        y_expected = Expected(
            values, np.abs(values), dtype, open=unclear | small, floor=1e-6 * np.abs(values)
        )
        compare(y.numpy(), y_expected, d.hosts)
        if x.size > 300 and not small.any() and not unclear.any():
            share = 1 - kept.mean()
            if abs(share - probability) > 0.2:
                raise WrongError(f"y: {share:.2f} of the values are dropped")
        dx = dnn.dropout_backward(handle, arrays["dy"], probability, reserve, dropout_state=state)
        values = np.where(kept, dy * scale, 0.0)
        unclear = ~np.isfinite(dy) | small | unclear
        # The factor is rounded to float32.
        floor = 1e-6 * np.abs(values)
        dx_expected = Expected(values, None, dtype, name="dx", open=unclear, floor=floor)
        compare(dx.numpy(), dx_expected, d.hosts)
        self.also.append("dropout_backward")


def dropout_forward(d: Draw) -> Dropout:
    return Dropout(d)


ARITHMETIC: dict[str, Callable[[Draw], Any]] = {
    function.__name__: function
    for function in (
        add_tensor,
        scale_tensor,
        set_tensor,
        op_tensor,
        reduce_tensor,
        transform_tensor,
        transform_filter,
        spatial_transformer_grid,
        spatial_transformer_grid_backward,
        spatial_transformer_sample,
        spatial_transformer_sample_backward,
        dropout_forward,
    )
}
