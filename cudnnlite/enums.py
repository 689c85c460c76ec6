"""The enums that users meet: C values under names without the C prefix.

All 73 are generated in `cudnnlite._raw.enums`; these are the ones that the public signatures use.
Wherever a function takes one of them it also takes the name, in any case: ``math_type="fma"``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import TypeVar

from cudnnlite._raw.cenum import CEnum

# isort: off
from cudnnlite._raw.enums import (
    ActivationMode,
    BatchNormMode,
    ConvolutionBwdDataAlgo,
    ConvolutionBwdFilterAlgo,
    ConvolutionFwdAlgo,
    ConvolutionMode,
    CTCGradMode,
    CTCLossAlgo,
    DataType,
    Determinism,
    LossNormalizationMode,
    MathType,
    NanPropagation,
    OpTensorOp,
    PoolingMode,
    ReduceTensorOp,
    ReorderType,
    RNNAlgo,
    RNNBiasMode,
    RNNDataLayout,
    RNNInputMode,
    RNNMode,
    SeqDataAxis,
    SoftmaxAlgorithm,
    SoftmaxMode,
    Status,
    TensorFormat,
)

# isort: on
from cudnnlite.arguments import shown, with_article
from cudnnlite.errors import ArgumentError

__all__ = [
    "TF32",
    "TRUE_FLOAT32",
    "ActivationMode",
    "BatchNormMode",
    "CTCGradMode",
    "CTCLossAlgo",
    "ConvolutionBwdDataAlgo",
    "ConvolutionBwdFilterAlgo",
    "ConvolutionFwdAlgo",
    "ConvolutionMode",
    "DataType",
    "Determinism",
    "LossNormalizationMode",
    "MathType",
    "NanPropagation",
    "OpTensorOp",
    "PoolingMode",
    "RNNAlgo",
    "RNNBiasMode",
    "RNNDataLayout",
    "RNNInputMode",
    "RNNMode",
    "ReduceTensorOp",
    "ReorderType",
    "SeqDataAxis",
    "SoftmaxAlgorithm",
    "SoftmaxMode",
    "Status",
    "TensorFormat",
    "parse_enum",
    "parse_math_type",
]

# On float32 tensors DEFAULT_MATH multiplies in TF32 on Ampere and later (relative error 3e-4 on an
# H200); only FMA_MATH is true float32 (3e-7).
TF32 = MathType.DEFAULT
TRUE_FLOAT32 = MathType.FMA

_MATH_NAMES = {"tf32": TF32, "true_float32": TRUE_FLOAT32, "float32": TRUE_FLOAT32}

EnumT = TypeVar("EnumT", bound=CEnum)


def parse_enum(
    kind: type[EnumT], value: object, argument: str, names: Mapping[str, EnumT] | None = None
) -> EnumT:
    """Turn a member, its name in any case, or its C value into a member of `kind`.

    Parameters
    ----------
    kind : type
        The enum.
    value : object
        What the user gave.
    argument : str
        The argument's name, for the message.
    names : mapping, optional
        The names that the documentation uses besides, in lower case; the message lists them first.

    Raises
    ------
    ArgumentError
        The value is none of `kind`'s, or is no choice (`is_choice`); the message lists what is
        allowed.
    """
    if isinstance(value, kind) and is_choice(value):
        return value
    ours = {} if names is None else names
    own = {name: member for name, member in kind.__members__.items() if is_choice(member)}
    wanted = value.upper().replace("-", "_") if isinstance(value, str) else ""
    if isinstance(value, str):
        for name, member in (*ours.items(), *own.items()):
            if name.upper() == wanted:
                return member
    elif isinstance(value, int) and not isinstance(value, (bool, CEnum)):
        for member in own.values():
            if member == value:
                return member
    every = [*ours, *(name for name in own if name.lower() not in ours)]
    near: list[str] = []
    if (
        2 < len(wanted) < 40 and wanted.isidentifier()
    ):  # 'avg' abbreviates AVERAGE_..., 'maxpool' begins with MAX
        in_order = "".join(f"[^{letter}]*{letter}" for letter in wanted)
        upper = {name.upper(): name for name in every}
        close = get_close_matches(wanted, upper, 1, 0.9)
        near = [
            upper[each]
            for each in close or upper
            if close or wanted.startswith(each) or re.match(in_order, each)
        ]
    allowed = (
        ", ".join(every)
        + ", in any case"
        + (f"; did you mean {' or '.join(near)}?" if near else "")
    )
    if isinstance(value, kind):
        raise ArgumentError(
            f"{argument}={kind.__name__}.{value.name} is not to be computed with; allowed: {allowed}"
        )
    raise ArgumentError(
        f"{argument}={shown(value)} is not {with_article(kind)}; allowed: {allowed}"
    )


def is_choice(member: CEnum) -> bool:
    """Tell whether something can be computed with a member.

    ``UNKNOWN_17`` only shows what a newer cuDNN returned, ``COUNT`` ends a C enumeration.
    """
    return member.name in type(member).__members__ and member.name != "COUNT"


def parse_math_type(value: object, argument: str = "math_type") -> MathType:
    """Like `parse_enum` for `MathType`, which also has plain names: 'tf32' and 'true_float32' (or 'float32')."""
    return parse_enum(MathType, value, argument, _MATH_NAMES)
