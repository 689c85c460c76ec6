"""Which math types keep what another one promises."""

from __future__ import annotations

from cudnnlite.enums import DataType, MathType

_NO_LESS_EXACT = (MathType.DEFAULT, MathType.FMA, MathType.TENSOR_OP)


def allowed_math_types(asked: MathType, dtype: DataType) -> tuple[MathType, ...]:
    """Return the math types that may stand for the one that was asked for.

    FMA (true float32) allows itself alone.  Float32 data is rounded to float16 only where
    TENSOR_OP_ALLOW_CONVERSION was asked for; to float16 and bfloat16 data that one means the same
    as TENSOR_OP.
    """
    if asked == MathType.FMA:
        return (asked,)
    if asked == MathType.TENSOR_OP_ALLOW_CONVERSION and dtype == DataType.FLOAT:
        return (*_NO_LESS_EXACT, asked)
    return _NO_LESS_EXACT


def may_be_tf32(math_type: MathType, dtype: DataType) -> bool:
    """Tell whether products of that data may be rounded to TF32, or further."""
    return dtype == DataType.FLOAT and math_type != MathType.FMA
