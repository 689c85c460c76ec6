"""Copies between layouts, data types and paddings, as declarations."""

from __future__ import annotations

from typing import Any

from cudnnlite.dtypes import dtype_name
from cudnnlite.enums import DataType
from cudnnlite.errors import ArgumentError
from cudnnlite.problems.operation import LAYER_DTYPES, Operation
from cudnnlite.specs import FilterSpec, TensorSpec
from cudnnlite.specs.layers import TensorTransformSpec

_NAMES = {
    "transDesc": "transformDesc",
    "srcDesc": "xDesc",
    "srcData": "x",
    "destDesc": "yDesc",
    "destData": "y",
}


def _check(specs: Any, options: Any) -> None:
    """Raise ArgumentError for what an H200 refuses, or computes wrongly."""
    x, y = (spec.dtype for spec in specs.values())
    halves = {DataType.HALF, DataType.BFLOAT16}
    is_unsupported = y in (DataType.DOUBLE, DataType.INT8) or {x, y} == halves
    if x != y and is_unsupported:
        raise ArgumentError(
            f"from {dtype_name(x)} to {dtype_name(y)} with padding or folding: cuDNN converts to "
            "float32, float16 and bfloat16 only, and not between the last two"
        )
    if options["beta"]:
        raise ArgumentError(f"beta={options['beta']!r} with padding or folding; allowed: 0")


TRANSFORM = Operation(
    "transform_tensor", "cudnnTransformTensor", ("x",), ("y",), lambda x: x, dtypes=(), mixed=True
)
EXTENDED = Operation(
    "transform_tensor_ex",
    "cudnnTransformTensorEx",
    ("x",),
    ("y",),
    lambda x, transform: TensorSpec(transform.output_shape(x.shape), x.dtype, transform.layout),
    {"transform": TensorTransformSpec},
    _NAMES,
    dtypes=LAYER_DTYPES,
    mixed=True,
    check=_check,
)


FILTER = Operation(
    "transform_filter_ex",
    "cudnnTransformFilter",
    ("x",),
    ("y",),
    lambda x, target, **_: target.tensor,
    {"source": FilterSpec, "target": FilterSpec, "transform": TensorTransformSpec},
    {**_NAMES, "srcDesc": "sourceDesc", "destDesc": "targetDesc"},
    dtypes=LAYER_DTYPES,
    mixed=True,
    check=_check,
    without_descriptor={
        "x": lambda values: values["source"].tensor,
        "y": lambda values: values["target"].tensor,
    },
)
