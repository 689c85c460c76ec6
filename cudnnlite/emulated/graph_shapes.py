"""`check_shapes`: refuse emulated graphs with operations whose tensors do not fit together."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from cudnnlite._raw.enums import BackendNormMode
from cudnnlite.emulated.backend import BackendObject
from cudnnlite.emulated.graph_engines import GraphFormula
from cudnnlite.emulated.registry import bad_parameter

Shape = tuple[int, ...]
Shapes = Mapping[str, Shape]


def check_shapes(graph: GraphFormula) -> None:
    """Refuse a graph with an operation that lacks tensors, or whose tensors do not fit together."""
    for operation in graph.operations:
        kind = operation.kind.removeprefix("OPERATION_")
        shapes = {
            name: tuple(tensor.attributes["dimensions"])
            for name, tensor in graph.tensors_of(operation).items()
        }
        missing = [name for name in _NEEDED.get(kind, ()) if name not in shapes]
        if missing:
            raise bad_parameter(f"{operation.kind} lacks {', '.join(missing)}")
        if not _FITS[kind](operation, shapes):
            listed = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
            raise bad_parameter(f"{operation.kind} has tensors that do not fit together: {listed}")


# The tensors that an operation must have.  The tensors of a pointwise operation depend on its mode,
# and are not checked here.
_NEEDED = {
    "MATMUL": ("adesc", "bdesc", "cdesc"),
    "REDUCTION": ("xdesc", "ydesc"),
    "RNG": ("seed", "offset_desc", "ydesc"),
    "RESHAPE": ("xdesc", "ydesc"),
    "NORM_FORWARD": ("xdesc", "scale_desc", "epsilon_desc", "ydesc"),
    "NORM_BACKWARD": ("xdesc", "dydesc", "scale_desc", "inv_variance_desc", "dxdesc"),
    "GEN_STATS": ("xdesc", "sumdesc", "sqsumdesc"),
    "RESAMPLE_FWD": ("xdesc", "ydesc"),
    "RESAMPLE_BWD": ("dydesc", "dxdesc"),
}


def _product_fits(_: BackendObject, shapes: Shapes) -> bool:
    a, b, c = (shapes[name] for name in ("adesc", "bdesc", "cdesc"))
    if not 2 <= len(a) == len(b) == len(c):
        return False
    # The overrides, such as gemm_m_override_desc, are the valid lengths of each batch.
    lengths = [shape for name, shape in shapes.items() if name.startswith("gemm_")]
    lengths_shape = (c[0], *(1,) * (len(c) - 1))
    if any(shape != lengths_shape for shape in lengths):
        return False
    batches = zip(a[:-2], b[:-2], c[:-2], strict=True)
    if not all(_batch_axis_fits(*sizes) for sizes in batches):
        return False
    return a[-1] == b[-2] and c[-2:] == (a[-2], b[-1])


def _batch_axis_fits(a_size: int, b_size: int, c_size: int) -> bool:
    """Return whether the sizes of a batch axis fit together.

    If one operand is shorter, groups of the other one share its entries, as heads of queries share
    a head of keys.
    """
    return c_size == max(a_size, b_size) and c_size % min(a_size, b_size) == 0


def _reduction_fits(_: BackendObject, shapes: Shapes) -> bool:
    x, y = shapes["xdesc"], shapes["ydesc"]
    if len(x) != len(y):
        return False
    # An axis is reduced to 1, or to groups of neighbours.
    return all(x_size % y_size == 0 for x_size, y_size in zip(x, y, strict=True))


def _rng_fits(_: BackendObject, shapes: Shapes) -> bool:
    return math.prod(shapes["seed"]) == math.prod(shapes["offset_desc"]) == 1


def _is_broadcast_to(shape: Shape, full_shape: Shape) -> bool:
    """Return whether a shape has the rank of a full one, and its size or 1 along each axis."""
    if len(shape) != len(full_shape):
        return False
    return all(size in (1, full_size) for size, full_size in zip(shape, full_shape, strict=True))


def _reshape_fits(_: BackendObject, shapes: Shapes) -> bool:
    return math.prod(shapes["xdesc"]) == math.prod(shapes["ydesc"])


def _pointwise_fits(_: BackendObject, shapes: Shapes) -> bool:
    if "dxdesc" in shapes:
        return shapes["dxdesc"] == shapes["xdesc"] == shapes["dydesc"]
    operands = [shapes[name] for name in ("xdesc", "bdesc", "tdesc") if name in shapes]
    if any(len(shape) != len(shapes["ydesc"]) for shape in operands):
        return False
    try:
        return tuple(np.broadcast_shapes(*operands)) == shapes["ydesc"]
    except ValueError:
        return False


def _normalization_fits(operation: BackendObject, shapes: Shapes) -> bool:
    x, scale = shapes["xdesc"], shapes["scale_desc"]
    images = [shapes[name] for name in ("ydesc", "dydesc", "dxdesc") if name in shapes]
    parameters = [
        shapes[name] for name in ("bias_desc", "dscale_desc", "dbias_desc") if name in shapes
    ]
    statistics = [shapes[name] for name in ("mean_desc", "inv_variance_desc") if name in shapes]
    if not _is_broadcast_to(scale, x) or len(x) < 3:
        return False
    expected = _statistics_shape(operation, x, scale)
    return (
        all(shape == x for shape in images)
        and all(shape == scale for shape in parameters)
        and all(shape == expected for shape in statistics)
    )


def _statistics_shape(operation: BackendObject, x: Shape, scale: Shape) -> Shape:
    """Return the shape of `mean_desc` and `inv_variance_desc`: 1 along normalised axes."""
    if BackendNormMode(operation.value("mode")) == BackendNormMode.INSTANCE:
        return (*x[:2], *(1,) * (len(x) - 2))
    sizes = tuple(
        1 if scale_size == x_size else x_size
        for x_size, scale_size in zip(x[1:], scale[1:], strict=True)
    )
    return (x[0], *sizes)


def _sums_fit(_: BackendObject, shapes: Shapes) -> bool:
    x = shapes["xdesc"]
    if len(x) < 3:
        return False
    expected = (1, x[1], *(1,) * (len(x) - 2))
    return shapes["sumdesc"] == shapes["sqsumdesc"] == expected


def _pooling_fits(operation: BackendObject, shapes: Shapes) -> bool:
    x = shapes.get("dxdesc", shapes.get("xdesc", ()))
    pooling: Mapping[str, Sequence[int]] = operation.value("desc").attributes
    windows, strides = pooling["window_dims"], pooling["strides"]
    befores, behinds = pooling["pre_paddings"], pooling["post_paddings"]
    num_axes = len(x) - 2
    if any(len(values) != num_axes for values in (windows, strides, befores, behinds)):
        return False
    if num_axes == 0 or min(strides) < 1:
        return False
    sizes = [
        (size + before + behind - window) // stride + 1
        for size, window, stride, before, behind in zip(
            x[2:], windows, strides, befores, behinds, strict=True
        )
    ]
    pooled = (*x[:2], *sizes)
    for name, shape in shapes.items():
        expected = x if name in ("xdesc", "dxdesc") else pooled
        if shape != expected:
            return False
    return min(sizes) > 0


_FITS: Mapping[str, Callable[[BackendObject, Shapes], bool]] = {
    "CONVOLUTION_FORWARD": lambda operation, shapes: True,  # was checked when it was made
    "MATMUL": _product_fits,
    "REDUCTION": _reduction_fits,
    "RESHAPE": _reshape_fits,
    "RNG": _rng_fits,
    "POINTWISE": _pointwise_fits,
    "NORM_FORWARD": _normalization_fits,
    "NORM_BACKWARD": _normalization_fits,
    "GEN_STATS": _sums_fit,
    "RESAMPLE_FWD": _pooling_fits,
    "RESAMPLE_BWD": _pooling_fits,
}
