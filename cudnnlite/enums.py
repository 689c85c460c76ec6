"""The enums of the public signatures: C values under names without the C prefix.

`cudnnlite.raw.enums` has all 73 of cuDNN's, generated from the headers, those of graphs too, which
a `Graph` takes by name.  Wherever a function
takes a member, it also takes the member's name in any case, ``math_type="fma"``, and its name in C:
``math_type="CUDNN_FMA_MATH"``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from cudnnlite._raw.cenum import CEnum, refuse_c_name

# isort: off
from cudnnlite._raw.enums import (
    C_MEMBERS,
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
from cudnnlite.other_libraries import SYNONYMS, choice_hint

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
]


def __dir__() -> list[str]:
    return sorted(__all__)


if not TYPE_CHECKING:

    def __getattr__(name: str) -> NoReturn:
        """Refuse a name; that of a member in C with the member."""
        refuse_c_name(__name__, name, C_MEMBERS, __all__)


# On float32 tensors DEFAULT_MATH multiplies in TF32 on Ampere and later (relative error 3e-4 on an
# H200); only FMA_MATH is true float32 (3e-7).
TF32 = MathType.DEFAULT
TRUE_FLOAT32 = MathType.FMA

_MATH_NAMES = {"tf32": TF32, "true_float32": TRUE_FLOAT32, "float32": TRUE_FLOAT32}

EnumT = TypeVar("EnumT", bound=CEnum)


def members_by_c_name(kind: type[EnumT]) -> dict[str, EnumT]:
    """Return the members of an enum by their names in C, in upper case, those of aliases too.

    cuDNN spells a few in both cases, such as CUDNN_DATA_INT8x4.
    """
    c_names = (c_name.upper() for c_name in C_MEMBERS[kind])
    return dict(zip(c_names, kind.__members__.values(), strict=True))


def parse_enum(
    kind: type[EnumT], value: object, argument: str, names: Mapping[str, EnumT] | None = None
) -> EnumT:
    """Return the member of `kind` for a member, its name here or in C in any case, or its C value.

    Parameters
    ----------
    kind : type
        The enum.
    value : object
        The value that the user passed.
    argument : str
        The argument's name, for the message.
    names : mapping, optional
        Further names in lower case, which the documentation uses; the message lists them first.

    Raises
    ------
    ArgumentError
        The value is not one of `kind`'s, or `is_choice` is false for it; the message lists the
        allowed names.
    """
    if isinstance(value, kind) and is_choice(value):
        return value
    plain_names = {} if names is None else names
    members: Mapping[str, EnumT] = _choices(kind)
    if isinstance(value, str):
        key = _key(value)
        for name, member in plain_names.items():
            if name.upper() == key:
                return member
        member_of_name: EnumT | None = _choices_by_key(kind).get(key)
        if member_of_name is not None:
            return member_of_name
        c_member = members_by_c_name(kind).get(key) if key.startswith("CUDNN_") else None
        if c_member is not None and is_choice(c_member):
            return c_member
    elif isinstance(value, int) and not isinstance(value, (bool, CEnum)):
        for member in members.values():
            if member == value:
                return member
    choices = [*plain_names, *(name for name in members if name.lower() not in plain_names)]
    allowed = f"{', '.join(choices)}, in any case"
    if isinstance(value, str):
        allowed += choice_hint(kind.__name__, value.lower()) or _meant_choice(value, choices)
    if isinstance(value, kind):
        raise ArgumentError(
            f"{argument}={kind.__name__}.{value.name} cannot be passed to cuDNN; allowed: {allowed}"
        )
    raise ArgumentError(
        f"{argument}={shown(value)} is not {with_article(kind)}; allowed: {allowed}"
    )


@cache
def _choices(kind: type[CEnum]) -> Mapping[str, Any]:
    """Return the members that may be passed to cuDNN, by their names."""
    return {name: member for name, member in kind.__members__.items() if is_choice(member)}


@cache
def _choices_by_key(kind: type[CEnum]) -> Mapping[str, Any]:
    """Return them by what `_key` makes of their names."""
    members = _choices(kind)
    by_key = {_key(name): member for name, member in members.items()}
    synonyms = SYNONYMS.get(kind.__name__, {})
    return by_key | {_key(word): by_key[_key(name)] for word, name in synonyms.items()}


def _key(text: str) -> str:
    """Return the form of a name that is compared with the names of members."""
    return text.upper().replace("-", "_")


def _meant_choice(text: str, choices: list[str]) -> str:
    """Return a hint at the names that a text may mean; empty if there are none."""
    similar = _similar_names(text, choices)
    return f"; did you mean {' or '.join(similar)}?" if similar else ""


def _similar_names(text: str, choices: list[str]) -> list[str]:
    """Return the names that a mistyped or abbreviated name may mean.

    'avg' abbreviates AVERAGE_COUNT_INCLUDE_PADDING, and 'maxpool' begins with MAX.
    """
    from difflib import get_close_matches  # for a refusal alone

    key = _key(text)
    if not (2 < len(key) < 40 and key.isidentifier()):
        return []
    names = {name.upper(): name for name in choices}
    close = get_close_matches(key, names, 1, 0.9)
    if close:
        return [names[close[0]]]
    letters_in_order = "".join(f"[^{letter}]*{letter}" for letter in key)
    return [
        name
        for upper, name in names.items()
        if key.startswith(upper) or re.match(letters_in_order, upper)
    ]


def is_choice(member: CEnum) -> bool:
    """Return whether a member may be passed to cuDNN.

    ``UNKNOWN_17`` only shows what a newer cuDNN returned, and ``COUNT`` ends a C enumeration.
    """
    return member.name in type(member).__members__ and member.name != "COUNT"


def parse_math_type(value: object, argument: str = "math_type") -> MathType:
    """Return a `MathType` as `parse_enum` does.

    It has plain names, too: 'tf32', and 'true_float32' or 'float32'.
    """
    if value is TF32:  # the default, which one-line calls pass each time
        return TF32
    return parse_enum(MathType, value, argument, _MATH_NAMES)
