"""Copies between layouts, data types and paddings, as declarations."""

from __future__ import annotations

from typing import Any

from cudnnlite.dtypes import ARRAY_DTYPES, dtype_name
from cudnnlite.enums import DataType
from cudnnlite.errors import ArgumentError
from cudnnlite.problems.operation import LAYER_DTYPES, Operation
from cudnnlite.specs import FilterSpec, TensorSpec
from cudnnlite.specs.layers import TensorTransformSpec
from cudnnlite.specs.layout import CHANNELS_LAST

# `cudnnSetTensorNdDescriptor` takes all data types of arrays but these.
_WITHOUT_DESCRIPTOR = (
    DataType.UINT32,
    DataType.INT64,
    DataType.FP8_E4M3,
    DataType.FP8_E5M2,
)
_TENSOR_DTYPES = tuple(dtype for dtype in ARRAY_DTYPES if dtype not in _WITHOUT_DESCRIPTOR)
# The C functions' names of arguments -> the names here.
_NAMES = {
    "transDesc": "transformDesc",
    "srcDesc": "xDesc",
    "srcData": "x",
    "destDesc": "yDesc",
    "destData": "y",
}


def _check(specs: Any, options: Any) -> None:
    """Raise ArgumentError for what an H200 refuses, or computes wrongly."""
    source, target = specs["x"].dtype, specs["y"].dtype
    halves = {DataType.HALF, DataType.BFLOAT16}
    is_unsupported = target in (DataType.DOUBLE, DataType.INT8) or {source, target} == halves
    if source != target and is_unsupported:
        raise ArgumentError(
            f"from {dtype_name(source)} to {dtype_name(target)} with padding or folding: "
            "cuDNN converts to "
            "float32, float16 and bfloat16 only, and not between the last two"
        )
    if options["beta"]:
        raise ArgumentError(f"beta={options['beta']!r} with padding or folding; allowed: 0")


def _check_plain_copy(specs: Any, options: Any) -> None:
    """Raise ArgumentError for a conversion from or to float64 that cuDNN computes wrongly.

    To float64: the kernel of 9.19 for tensors with gaps, in two layouts, of one pixel, or of one channel that comes last
    reads alpha and beta as double if y is float64.  Its other kernel reads them as float if x is.
    Which of them runs is cuDNN's choice, so that no scalar would be right for both.  (H200, shapes
    of rank 4 and 5, with scalars of both types.)

    From float64: 9.19 ignores beta between two layouts of rank 5, and 9.28 did so of an image with
    gaps (H200, 2026-11-29).
    """
    x, y = specs["x"], specs["y"]
    if (x.dtype == DataType.DOUBLE) == (y.dtype == DataType.DOUBLE):
        return
    is_in_one_layout = x.canonical.layout == y.canonical.layout != "strided"
    if x.dtype == DataType.DOUBLE:
        if options["beta"] and not is_in_one_layout:
            raise ArgumentError(
                f"beta={options['beta']!r} from {x} to {y}: cuDNN may ignore beta where it converts "
                f"float64 to {dtype_name(y.dtype)} and either has gaps or the layouts differ; "
                "allowed there: 0"
            )
        return
    # In rank 5, 2 of 2 such calls were right; in rank 4, 3 of 3 were wrong.
    has_channel_last = x.canonical.layout in CHANNELS_LAST.values() and x.rank < 5
    has_last_channel = has_channel_last and x.shape[1] == 1
    if is_in_one_layout and not has_last_channel and max(x.shape[2:], default=1) > 1:
        return
    raise ArgumentError(
        f"x is {x} and out is {y}: cuDNN 9.19 converts {dtype_name(x.dtype)} to float64 wrongly where "
        "either has gaps, the layouts differ, images have one pixel, or a single channel comes last; "
        "give packed images of more pixels in one layout, a single channel first, as "
        "transform_tensor(x, layout=...) and reshape make them"
    )


TRANSFORM = Operation(
    "transform_tensor",
    "cudnnTransformTensor",
    reads=("x",),
    writes=("y",),
    infer=lambda x: x,
    dtypes=_TENSOR_DTYPES,
    mixed=True,  # x and y may have different ones
    check=_check_plain_copy,
)
EXTENDED = Operation(
    "transform_tensor_ex",
    "cudnnTransformTensorEx",
    reads=("x",),
    writes=("y",),
    infer=lambda x, transform: TensorSpec(
        transform.output_shape(x.shape), x.dtype, transform.layout
    ),
    options={"transform": TensorTransformSpec},
    names=_NAMES,
    dtypes=LAYER_DTYPES,
    mixed=True,
    check=_check,
)


FILTER = Operation(
    "transform_filter_ex",
    "cudnnTransformFilter",
    reads=("x",),
    writes=("y",),
    infer=lambda x, target, **_: target.tensor,
    options={"source": FilterSpec, "target": FilterSpec, "transform": TensorTransformSpec},
    names={**_NAMES, "srcDesc": "sourceDesc", "destDesc": "targetDesc"},
    dtypes=LAYER_DTYPES,
    mixed=True,
    check=_check,
    # The C function takes filter descriptors, source and target, instead of those of x and y.
    without_descriptor={
        "x": lambda values: values["source"].tensor,
        "y": lambda values: values["target"].tensor,
    },
)
