"""`OpTensorSpec` and `ReduceTensorSpec`: what is made of two values, or of all values along some axes."""

from dataclasses import dataclass
from typing import Any

from cudnnlite._raw.enums import ReduceTensorIndices
from cudnnlite.dtypes import parse_dtype
from cudnnlite.enums import DataType, NanPropagation, OpTensorOp, ReduceTensorOp, parse_enum
from cudnnlite.specs.frozen import FrozenSpec


@dataclass(frozen=True, init=False, repr=False, eq=False)
class OpTensorSpec(FrozenSpec):
    """An operation on two values: a frozen value, equal and hashable by its fields.

    Parameters
    ----------
    op : OpTensorOp or str
        "add", "mul", "min", "max", "sqrt" or "not".
    nan : NanPropagation or str
        Whether the smaller or the larger of a number and a NaN is that: "propagate" or "not_propagate".
    compute_type : DataType or str
        What is computed in: float32; an operation on float64 operands sets it to float64.

    Notes
    -----
    C function: `cudnnSetOpTensorDescriptor`.

    Examples
    --------
    >>> dnn.OpTensorSpec("max", nan="not_propagate")
    OpTensorSpec(op='MAX', nan='NOT_PROPAGATE')
    """

    op: OpTensorOp
    nan: NanPropagation
    compute_type: DataType
    named_by = OpTensorOp

    def __init__(
        self, op: OpTensorOp | str, *, nan: NanPropagation | str = NanPropagation.PROPAGATE,
        compute_type: Any = DataType.FLOAT,
    ) -> None:  # fmt: skip
        kind, propagation = parse_enum(OpTensorOp, op, "op"), parse_enum(NanPropagation, nan, "nan")
        self._freeze(op=kind, nan=propagation, compute_type=parse_dtype(compute_type, "compute_type"))


@dataclass(frozen=True, init=False, repr=False, eq=False)
class ReduceTensorSpec(FrozenSpec):
    """What is made of many values: a frozen value, equal and hashable by its fields.

    Parameters
    ----------
    op : ReduceTensorOp or str
        "add", "mul", "min", "max", "amax" (the largest absolute value), "avg", "norm1", "norm2" or "mul_no_zeros".
    nan : NanPropagation or str
        Whether a NaN makes the minimum or maximum one: "propagate" or "not_propagate".
    compute_type : DataType or str
        What is computed in: float32; an operation on float64 operands sets it to float64.
    indices : ReduceTensorIndices or str
        "flattened" where the place of what was found is wanted too, as `reduce_tensor(..., indices=True)` does; "no".

    Notes
    -----
    C function: `cudnnSetReduceTensorDescriptor`.

    Examples
    --------
    >>> dnn.ReduceTensorSpec("norm2").op
    <ReduceTensorOp.NORM2: 7>
    """

    op: ReduceTensorOp
    nan: NanPropagation
    compute_type: DataType
    indices: ReduceTensorIndices
    named_by = ReduceTensorOp

    def __init__(
        self, op: ReduceTensorOp | str, *, nan: NanPropagation | str = NanPropagation.PROPAGATE,
        compute_type: Any = DataType.FLOAT, indices: ReduceTensorIndices | str = ReduceTensorIndices.NO,
    ) -> None:  # fmt: skip
        kind, propagation = parse_enum(ReduceTensorOp, op, "op"), parse_enum(NanPropagation, nan, "nan")
        places = parse_enum(ReduceTensorIndices, indices, "indices")
        kinds = parse_dtype(compute_type, "compute_type")
        self._freeze(op=kind, nan=propagation, compute_type=kinds, indices=places)
