"""The matrix of a convolution's input patches, as a declaration."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from cudnnlite.errors import ArgumentError
from cudnnlite.problems.convolution import FORWARD as CONVOLUTION
from cudnnlite.problems.operation import FLOATS, Operation
from cudnnlite.specs import ConvolutionSpec, FilterSpec, TensorSpec


def _columns(x: TensorSpec, w: FilterSpec, conv: ConvolutionSpec) -> TensorSpec:
    has_even_padding = conv.for_shapes(x.shape, w.shape).is_symmetric
    if conv.groups != 1 or x.rank == 5 or not has_even_padding:
        raise ArgumentError(
            f"conv={conv} of x={x}; cuDNN has columns of one group, in one or two dimensions, "
            "with the same padding at both ends of an axis"
        )
    n, _, *positions = conv.output_shape(x.shape, w.shape)
    return TensorSpec((prod(w.shape[1:]), n * prod(positions)), x.dtype)


def _complete(specs: Mapping[str, Any], options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return complete options: those of a convolution, and `w` with the data type of `x`."""
    return {
        **CONVOLUTION.complete(specs, options),
        "w": options["w"].replace(dtype=specs["x"].dtype),
    }


IM2COL = Operation(
    "im2col",
    "cudnnIm2Col",
    reads=("x",),
    writes=("columns",),
    infer=_columns,
    options={"w": FilterSpec, "conv": ConvolutionSpec},
    names={"colBuffer": "columns"},
    without_descriptor={
        "columns": lambda values: _columns(values["x"], values["w"], values["conv"])
    },
    dtypes=FLOATS,
    complete=_complete,
)
