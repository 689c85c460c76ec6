"""Which math types may replace another one."""

from __future__ import annotations

from cudnnlite.enums import DataType, MathType

_NO_LESS_EXACT = (MathType.DEFAULT, MathType.FMA, MathType.TENSOR_OP)


def allowed_math_types(requested: MathType, dtype: DataType) -> tuple[MathType, ...]:
    """Return the math types that may replace the requested one.

    Only FMA (true float32) may replace FMA.  Float32 data is rounded to float16 only if
    TENSOR_OP_ALLOW_CONVERSION is requested; for float16 and bfloat16 data it means the same as
    TENSOR_OP.
    """
    if requested == MathType.FMA:
        return (requested,)
    if requested == MathType.TENSOR_OP_ALLOW_CONVERSION and dtype == DataType.FLOAT:
        return (*_NO_LESS_EXACT, requested)
    return _NO_LESS_EXACT


def may_be_tf32(math_type: MathType, dtype: DataType) -> bool:
    """Tell whether products of that data may be rounded to TF32, or further."""
    return dtype == DataType.FLOAT and math_type != MathType.FMA
