"""Access to the messages of ONNX: texts, shapes, and messages inside other messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cudnnlite.errors import ArgumentError

# The prefix of the names that shape inference and `set_input_sizes` invent for axes without one.
UNNAMED_AXIS = "unk__"
# What some exporters write as the name of every axis without one.
NO_NAME = "?"


def messages_within(holder: Any, kind: type) -> list[Any]:
    """Return all messages of a kind in a message, at any depth.

    Texts are found too: as `str` where they are UTF-8, and as `bytes` where they are not.
    """
    values = [holder]
    for value in values:  # the list grows in the loop
        if not isinstance(value, (str, bytes)):
            values += _parts_of(value)
    return [value for value in values if isinstance(value, kind)]


def _parts_of(message: Any) -> list[Any]:
    """Return the messages and the texts that are fields of a message."""
    parts: list[Any] = []
    for field, value in message.ListFields():
        if field.type not in (field.TYPE_MESSAGE, field.TYPE_STRING):
            continue
        is_repeated = hasattr(value, "append")
        parts += value if is_repeated else [value]
    return parts


def shape_of(value: Any) -> tuple[int | str, ...] | None:
    """Return the shape of a TensorProto or a ValueInfoProto.

    None if the number of axes is unknown.  A symbolic size is its name, or an empty text if it has
    no name.
    """
    if hasattr(value, "dims"):
        return tuple(value.dims)
    if value is None or not value.type.tensor_type.HasField("shape"):
        return None
    return tuple(_size_of(dim) for dim in value.type.tensor_type.shape.dim)


def _size_of(dim: Any) -> int | str:
    # Some exporters write 0 or -1 for a symbolic size.
    if dim.dim_value > 0:
        return int(dim.dim_value)
    if dim.dim_param.startswith(UNNAMED_AXIS):
        return ""
    return str(dim.dim_param)


def format_shape(shape: Sequence[int | str] | None) -> str:
    """Return a shape as messages show it."""
    if shape is None:
        return "unknown"
    sizes = ", ".join(str(size) or "?" for size in shape)
    if len(shape) == 1:
        return f"({sizes},)"
    return f"({sizes})"


def require(condition: Any, why: str) -> None:
    """Raise an ArgumentError unless a condition holds."""
    if not condition:
        raise ArgumentError(why)
