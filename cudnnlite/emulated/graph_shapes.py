"""Shapes in emulated graphs: operations whose tensors do not fit together are refused."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from cudnnlite._raw.enums import BackendNormMode
from cudnnlite.emulated.backend import BackendObject
from cudnnlite.emulated.graph_formula import GraphFormula
from cudnnlite.emulated.registry import bad

Shape = tuple[int, ...]
Shapes = Mapping[str, Shape]


def check_shapes(graph: GraphFormula) -> None:
    """Refuse a graph with an operation whose tensors do not fit together."""
    for operation in graph.operations:
        kind = operation.kind.removeprefix("OPERATION_")
        shapes = {
            name: tuple(tensor.attributes["dimensions"])
            for name, tensor in graph.tensors_of(operation).items()
        }
        missing = [name for name in _NEEDED.get(kind, ()) if name not in shapes]
        if missing:
            raise bad(f"{operation.kind} lacks {', '.join(missing)}")
        if not _FITS[kind](operation, shapes):
            listed = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
            raise bad(f"{operation.kind} has tensors that do not fit together: {listed}")


_NEEDED = {
    "MATMUL": ("adesc", "bdesc", "cdesc"),
    "REDUCTION": ("xdesc", "ydesc"),
    "RNG": ("seed", "offset_desc", "ydesc"),
    "RESHAPE": ("xdesc", "ydesc"),
    "NORM_FORWARD": ("xdesc", "scale_desc", "epsilon_desc", "ydesc"),
    "NORM_BACKWARD": ("xdesc", "dydesc", "scale_desc", "inv_variance_desc", "dxdesc"),
    "GEN_STATS": ("xdesc", "sumdesc", "sqsumdesc"),
    "RESAMPLE_FWD": ("xdesc", "ydesc"),
}


def _product_fits(_: BackendObject, shapes: Shapes) -> bool:
    a, b, c = (shapes[name] for name in ("adesc", "bdesc", "cdesc"))
    if not 2 <= len(a) == len(b) == len(c):
        return False
    batches = zip(a[:-2], b[:-2], c[:-2], strict=True)
    batches_fit = all(max(x, y) == z and z % min(x, y) == 0 for x, y, z in batches)
    lengths = [shape for name, shape in shapes.items() if name.startswith("gemm_")]
    if any(shape != (c[0], *(1,) * (len(c) - 1)) for shape in lengths):
        return False
    return batches_fit and a[-1] == b[-2] and c[-2:] == (a[-2], b[-1])


def _reduction_fits(_: BackendObject, shapes: Shapes) -> bool:
    x, y = shapes["xdesc"], shapes["ydesc"]
    return len(x) == len(y) and all(whole % size == 0 for size, whole in zip(y, x, strict=True))


def _numbers_fit(_: BackendObject, shapes: Shapes) -> bool:
    return math.prod(shapes["seed"]) == math.prod(shapes["offset_desc"]) == 1


def _is_broadcast_to(shape: Shape, whole: Shape) -> bool:
    """Whether a shape has the rank of another one, and its size or 1 along each axis."""
    if len(shape) != len(whole):
        return False
    return all(size in (1, other) for size, other in zip(shape, whole, strict=True))


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
    if BackendNormMode(operation.value("mode")) == BackendNormMode.INSTANCE:
        return (*x[:2], *(1,) * (len(x) - 2))
    return (x[0], *(1 if a == b else a for a, b in zip(x[1:], scale[1:], strict=True)))


def _statistics_fit(_: BackendObject, shapes: Shapes) -> bool:
    x = shapes["xdesc"]
    if len(x) < 3:
        return False
    expected = (1, x[1], *(1,) * (len(x) - 2))
    return shapes["sumdesc"] == shapes["sqsumdesc"] == expected


def _pooling_fits(operation: BackendObject, shapes: Shapes) -> bool:
    x, steps = shapes["xdesc"], operation.value("desc").attributes
    lists: list[Sequence[int]] = [
        steps[name] for name in ("window_dims", "strides", "pre_paddings", "post_paddings")
    ]
    if any(len(values) != len(x) - 2 for values in lists) or min(lists[1], default=0) < 1:
        return False
    sizes = [
        (size + before + behind - window) // stride + 1
        for size, window, stride, before, behind in zip(x[2:], *lists, strict=True)
    ]
    return shapes["ydesc"] == (*x[:2], *sizes) and min(sizes) > 0


_FITS: Mapping[str, Callable[[BackendObject, Shapes], bool]] = {
    "CONVOLUTION_FORWARD": lambda operation, shapes: True,  # was checked when it was made
    "MATMUL": _product_fits,
    "REDUCTION": _reduction_fits,
    "RESHAPE": _reshape_fits,
    "RNG": _numbers_fit,
    "POINTWISE": _pointwise_fits,
    "NORM_FORWARD": _normalization_fits,
    "NORM_BACKWARD": _normalization_fits,
    "GEN_STATS": _statistics_fit,
    "RESAMPLE_FWD": _pooling_fits,
}
