"""`OnnxNode`: one node of an ONNX model, its attributes and inputs read with a reason where that fails."""

from __future__ import annotations

from collections import ChainMap
from dataclasses import dataclass, field
from typing import Any, TypeVar

from cudnnlite.autotune.onnx.file import import_onnx
from cudnnlite.autotune.onnx.shapes import shape_of, show
from cudnnlite.dtypes import dtype_name
from cudnnlite.enums import DataType
from cudnnlite.specs.layout import CHANNELS_FIRST

FLOATS = {"FLOAT": DataType.FLOAT, "FLOAT16": DataType.HALF, "DOUBLE": DataType.DOUBLE, "BFLOAT16": DataType.BFLOAT16}
_KINDS: dict[type, str] = {int: "INT", float: "FLOAT", str: "STRING", tuple: "INTS", list: "STRINGS"}
_T = TypeVar("_T", int, float, str, tuple[int, ...], list[str])

Known = ChainMap[str, Any]  # by name: a ValueInfoProto, or the TensorProto of what stands in the model


class NoProblemError(Exception):
    """A node of which no problem can be made, and why."""


class UnknownShapeError(NoProblemError):
    """The reason is that a shape is not known."""


@dataclass
class Reading:
    """How nodes are read: with which dtype instead of the model's, in which layouts by rank; `notes` is filled."""

    dtype: DataType | None = None
    layouts: dict[int, str] = field(default_factory=lambda: CHANNELS_FIRST)
    notes: list[str] = field(default_factory=list)


class OnnxNode:
    """A node, with what is known of the values that it can refer to.

    Its `name` is what it writes where it has none; its `operation` has a domain in front that is not ONNX's own.
    """

    def __init__(self, node: Any, known: Known, prefix: str = "") -> None:
        self._inputs, self._known = node.input, known
        self._attributes = {attribute.name: attribute for attribute in node.attribute}
        self.name = prefix + (node.name or next(filter(None, node.output), node.op_type))
        self.domain = "" if node.domain == "ai.onnx" else str(node.domain)
        self.operation = f"{self.domain}.{node.op_type}" if self.domain else str(node.op_type)

    def has_input(self, position: int) -> bool:
        """Tell whether an optional input is there."""
        return len(self._inputs) > position and bool(self._inputs[position])

    def shape_if_known(self, position: int) -> tuple[int, ...] | None:
        """Return the shape of an input; None where not all of it is known."""
        shape = shape_of(self._input(position))
        sizes = tuple(size for size in shape or () if isinstance(size, int))
        return None if shape is None or len(sizes) < len(shape) else sizes

    def shape(self, position: int) -> tuple[int, ...]:
        """Return the shape of an input, all of which must be known."""
        sizes, name = self.shape_if_known(position), self._inputs[position]
        if sizes is None:
            found = show(shape_of(self._input(position)))
            raise UnknownShapeError(f"the shape of its input {name!r} is not known: {found}")
        return sizes

    def dtype(self, position: int) -> DataType:
        """Return the data type of an input, one of the floating-point types that cuDNN shares with ONNX."""
        value, name = self._input(position), self._inputs[position]
        number = value.data_type if hasattr(value, "dims") else value.type.tensor_type.elem_type
        if not number:
            raise NoProblemError(f"the data type of its input {name!r} is not known; dtype= gives one")
        kinds = import_onnx().TensorProto.DataType
        kind = kinds.Name(number) if number in kinds.values() else f"of data type {number}"
        if kind not in FLOATS:
            allowed = ", ".join(map(dtype_name, FLOATS.values()))
            raise NoProblemError(f"its input {name!r} is {kind.lower()}; cudnnlite convolves {allowed}")
        return FLOATS[kind]

    def constant(self, position: int) -> list[Any] | None:
        """Return the values of an input, flat, where they stand in the model; None where they are computed."""
        onnx, value = import_onnx(), self._input(position)
        if not hasattr(value, "dims") or onnx.external_data_helper.uses_external_data(value):
            return None
        try:
            values: list[Any] = onnx.numpy_helper.to_array(value).reshape(-1).tolist()
        except Exception as error:  # whatever to_array stumbles over
            raise NoProblemError(f"its input {self._inputs[position]!r} cannot be read: {error}") from error
        return values

    def attribute(self, name: str, default: _T) -> _T:
        """Return an attribute, or a default of the type that it must have."""
        onnx, found = import_onnx(), self._attributes.get(name)
        if found is None:
            return default
        kind = _KINDS[type(default)]
        if found.type != onnx.AttributeProto.AttributeType.Value(kind):
            raise NoProblemError(f"its attribute {name} is not of type {kind}")
        value = onnx.helper.get_attribute_value(found)
        if isinstance(default, str):
            return value.decode("utf-8", "replace")  # type: ignore[no-any-return]
        if isinstance(default, list):
            return [text.decode("utf-8", "replace") for text in value]
        return type(default)(value)

    def _input(self, position: int) -> Any:
        if not self.has_input(position):
            raise NoProblemError(f"it has no input {position}")
        return self._known.get(self._inputs[position], import_onnx().ValueInfoProto())
