"""Arithmetic on whole tensors; the oracles are NumPy's own reductions and SciPy's."""

from __future__ import annotations

import itertools

import numpy as np
from scipy import linalg

import cudnnlite as dnn
import samples as s

_SMALL = {
    "bias": lambda n, c, *rest: (1, c, *[1] * len(rest)),
    "same": lambda *images: images,
    "row": lambda *images: (*[1] * (len(images) - 1), images[-1]),
    "image": lambda n, *rest: (1, *rest),
    "one": lambda *images: (1,) * len(images),
    "channel": lambda n, c, *rest: (n, 1, *rest),
}


def _repeated_along(axes, images):
    """Return a shape with size 1 on the axes marked "1": "0011" keeps images and channels."""
    return tuple(1 if axis == "1" else size for axis, size in zip(axes, images, strict=True))


def _beside(small, large):
    def at(images, plain):
        if "repeated" in plain:
            return {small: _repeated_along(plain["repeated"], images), large: images}
        return {small: _SMALL[plain.get("shape", "bias")](*images), large: images}

    return at


def _repeated_combinations(sets, options):
    """Return `Sample.combinations` of an operation that repeats an operand along any axes."""

    def combinations(name):
        yield from s.usual_combinations(name, sets)
        for rank, dtype, layout in itertools.product(s.IMAGES, s.FLOATS, ("first", "strided")):
            for axes in itertools.product("01", repeat=rank):
                plain = {**options, "repeated": "".join(axes)}
                yield name, plain, rank, dtype, layout, layout, dtype, 0.0
        for layout in s.LAYOUTS:
            yield name, {**options, "shape": "image"}, 4, "int8", layout, layout, "float32", 0.0

    return combinations


def _op(op, *, like=dnn.specs.OpTensorSpec):
    return lambda plain: {"op": like(plain.get("op", op), nan=plain.get("nan", "propagate"))}


def _drawn_beside(small, large, options=lambda draw: {}):
    def drawn(draw, images):
        from hypothesis import strategies as st

        shape = draw(st.sampled_from([*_SMALL]))
        return {small: _SMALL[shape](*images), large: images}, options(draw)

    return drawn


def _drawn_op(draw):
    from hypothesis import strategies as st

    return {"op": dnn.specs.OpTensorSpec(draw(st.sampled_from(("add", "mul", "min", "max"))))}


def _op_reference(a, b, op, alpha1, alpha2):
    a, b = alpha1 * a, alpha2 * np.broadcast_to(b, a.shape)
    if op.op.name in ("SQRT", "NOT"):  # what NOT is an H200 told: the documentation leaves it open
        return np.power(a, 0.5) if op.op.name == "SQRT" else 1 - a
    return {"ADD": a + b, "MUL": a * b, "MIN": np.where(a < b, a, b), "MAX": np.where(a > b, a, b)}[
        op.op.name
    ]


def _reduced(a, c, op):
    """Reduce one value of c after the other."""
    c = np.empty(c.shape)
    for place in np.ndindex(*c.shape):
        values = a[
            tuple(
                slice(None) if size == 1 else slice(i, i + 1)
                for i, size in zip(place, c.shape, strict=True)
            )
        ]
        values = values.ravel()
        c[place] = {
            "ADD": sum,
            "MUL": np.prod,
            "MIN": min,
            "MAX": max,
            "AMAX": lambda v: max(map(abs, v)),
            "AVG": np.average,
            "NORM1": lambda v: linalg.norm(v, 1),
            "NORM2": linalg.norm,
            "MUL_NO_ZEROS": lambda v: np.prod(v[v != 0]),
        }[op.op.name](values)
    return c


def _drawn_reduce(draw, images):
    from hypothesis import strategies as st

    shape = tuple(draw(st.sampled_from((1, size))) for size in images)
    ops = [op for op in dnn.enums.ReduceTensorOp.__members__ if not op.startswith("MUL")]
    return {"a": images, "c": shape}, {"op": dnn.specs.ReduceTensorSpec(draw(st.sampled_from(ops)))}


_REDUCED = {
    "batch": lambda n, *rest: (1, *rest),
    "images": lambda n, c, *rest: (n, c, *[1] * len(rest)),
    "channel": lambda n, c, *rest: (n, 1, *rest),
    "all": lambda *images: (1,) * len(images),
    "bias": _SMALL["bias"],
    "row": lambda n, *rest: (n, *[1] * len(rest)),
}


def _reducing(images, plain):
    return {"a": images, "c": _REDUCED[plain.get("shape", "row")](*images)}


_OPS = ("ADD", "MUL", "MIN", "MAX", "SQRT", "NOT")
_REDUCTIONS = (
    # products of few values, which float16 can hold
    *(
        {"op": op, "shape": "batch" if "MUL" in op else "bias"}
        for op in dnn.enums.ReduceTensorOp.__members__
    ),
    *({"op": "ADD", "shape": shape} for shape in _REDUCED if shape != "bias"),
)
_OP_SETS = (
    *({"op": op} for op in _OPS),
    {"op": "MAX", "nan": "NOT_PROPAGATE"},
    *({"op": "ADD", "shape": shape} for shape in _SMALL if shape != "bias"),
)


def _reduce_combinations(name):
    yield from s.usual_combinations(name, _REDUCTIONS)
    yield from s.combinations_between_layouts(name, (_REDUCTIONS[0], _REDUCTIONS[-1]))
    for layout in s.LAYOUTS:
        yield name, _REDUCTIONS[0], 4, "int8", layout, layout, "float32", 0.0


_ALPHAS = {"alpha1": 1.0, "alpha2": 1.0}
SAMPLES = {
    "add_tensor": s.Sample(
        {},
        at=_beside("a", "c"),
        reference=lambda a, c: a,
        loose=True,
        drawn=_drawn_beside("a", "c"),
        sets=tuple({"shape": shape} for shape in _SMALL),
        make=lambda plain: {},
        combinations=_repeated_combinations(tuple({"shape": shape} for shape in _SMALL), {}),
    ),
    "scale_tensor": s.Sample(
        {}, at=lambda images, plain: {"y": images}, reference=lambda y: y, loose=True
    ),
    "set_tensor": s.Sample(
        {"value": 1.5},
        at=lambda images, plain: {"y": images},
        reference=lambda y, value: 0 * y + value,
        loose=True,
        make=lambda plain: {"value": 1.5},
    ),
    "op_tensor": s.Sample(
        {"op": dnn.specs.OpTensorSpec("mul"), "alpha1": 2.0, "alpha2": -0.5},
        at=_beside("b", "a"),
        reference=_op_reference,
        positive=frozenset({"a"}),
        drawn=_drawn_beside("b", "a", _drawn_op),
        sets=_OP_SETS,
        combinations=_repeated_combinations(_OP_SETS, {"op": "MAX"}),
        make=lambda plain: _op("add")(plain) | _ALPHAS,
    ),
    "reduce_tensor": s.Sample(
        {"op": dnn.specs.ReduceTensorSpec("avg")},
        at=_reducing,
        reference=_reduced,
        loose=True,
        drawn=_drawn_reduce,
        sets=_REDUCTIONS,
        combinations=_reduce_combinations,
        make=_op("add", like=dnn.specs.ReduceTensorSpec),
        refused="cuDNN reduces along one of its axes",
    ),
    "transform_tensor": s.Sample({}, reference=lambda x: x, converts=True),
}
