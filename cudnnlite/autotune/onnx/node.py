"""`OnnxNode`: one node of an ONNX model, its attributes and inputs read with a reason where that fails."""

from __future__ import annotations

from typing import Any

from cudnnlite.autotune.onnx.shapes import Scope, TensorType
from cudnnlite.dtypes import dtype_name
from cudnnlite.enums import DataType

FLOATS = {"FLOAT": DataType.FLOAT, "FLOAT16": DataType.HALF, "DOUBLE": DataType.DOUBLE, "BFLOAT16": DataType.BFLOAT16}


class NoProblemError(Exception):
    """A node of which no problem can be made; the message is the reason.

    Attributes
    ----------
    unknown : str
        The name of the value whose shape is missing, where that is the reason.
    """

    def __init__(self, why: str, *, unknown: str = "") -> None:
        super().__init__(why)
        self.unknown = unknown


class OnnxNode:
    """A node, read in its scope.

    Attributes
    ----------
    name : str
        Its name, or what it writes where it has none, after those of the nodes around it.
    """

    def __init__(self, onnx: Any, node: Any, scope: Scope, prefix: str = "") -> None:
        self._onnx, self._node, self._scope = onnx, node, scope
        written = next((name for name in node.output if name), "")
        self.name = prefix + (node.name or written or node.op_type)
        self._attributes = {attribute.name: attribute for attribute in node.attribute}

    @property
    def domain(self) -> str:
        """The operator's domain; empty for ONNX's own."""
        return "" if self._node.domain == "ai.onnx" else str(self._node.domain)

    @property
    def key(self) -> tuple[str, str]:
        """Domain and name of the operator, by which the model's functions are known."""
        return str(self._node.domain), str(self._node.op_type)

    @property
    def operation(self) -> str:
        """The operator, with its domain where that is not ONNX's own."""
        return f"{self.domain}.{self._node.op_type}" if self.domain else str(self._node.op_type)

    def has_input(self, position: int) -> bool:
        """Tell whether an optional input is there."""
        return len(self._node.input) > position and bool(self._node.input[position])

    def _input(self, position: int) -> str:
        if not self.has_input(position):
            raise NoProblemError(f"it has no input {position}")
        return str(self._node.input[position])

    def shape(self, position: int) -> tuple[int, ...]:
        """Return the shape of an input, all of which must be known."""
        name = self._input(position)
        found = self._scope.types.get(name, TensorType())
        if found.sizes is None:
            raise NoProblemError(
                f"the shape of its input {name!r} is not known: {found}",
                unknown=name,
            )
        return found.sizes

    def shape_if_known(self, position: int) -> tuple[int, ...] | None:
        """Return the shape of an input; None where not all of it is known."""
        return self._scope.types.get(self._input(position), TensorType()).sizes

    def dtype(self, position: int) -> DataType:
        """Return the data type of an input, one of the floating-point types that cuDNN shares with ONNX."""
        name = self._input(position)
        number = self._scope.types.get(name, TensorType()).elem_type
        if not number:
            raise NoProblemError(f"the data type of its input {name!r} is not known; dtype= gives one")
        kinds = self._onnx.TensorProto.DataType
        kind = kinds.Name(number) if number in kinds.values() else f"of data type {number}"
        if kind not in FLOATS:
            allowed = ", ".join(map(dtype_name, FLOATS.values()))
            raise NoProblemError(f"its input {name!r} is {kind.lower()}; cudnnlite convolves {allowed}")
        return FLOATS[kind]

    def constant(self, position: int) -> list[Any] | None:
        """Return the values of an input, flat, where they stand in the model; None where they are computed."""
        tensor = self._scope.constants.get(self._input(position))
        if tensor is None or self._onnx.external_data_helper.uses_external_data(tensor):
            return None
        try:
            values: list[Any] = self._onnx.numpy_helper.to_array(tensor).reshape(-1).tolist()
        except Exception as error:  # whatever to_array stumbles over
            raise NoProblemError(f"its input {self._input(position)!r} cannot be read: {error}") from error
        return values

    def integers(self, name: str) -> tuple[int, ...] | None:
        """Return a list of integers; None where the attribute is absent."""
        found = self._attribute(name, "INTS")
        return None if found is None else tuple(found.ints)

    def integer(self, name: str, default: int) -> int:
        """Return an integer."""
        found = self._attribute(name, "INT")
        return default if found is None else int(found.i)

    def text(self, name: str, default: str) -> str:
        """Return a string."""
        found = self._attribute(name, "STRING")
        return default if found is None else found.s.decode("utf-8", "replace")

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a list of strings; empty where the attribute is absent."""
        found = self._attribute(name, "STRINGS")
        return () if found is None else tuple(text.decode("utf-8", "replace") for text in found.strings)

    def number(self, name: str) -> float | None:
        """Return a float; None where the attribute is absent."""
        found = self._attribute(name, "FLOAT")
        return None if found is None else float(found.f)

    def _attribute(self, name: str, kind: str) -> Any:
        found = self._attributes.get(name)
        wanted = self._onnx.AttributeProto.AttributeType.Value(kind)
        if found is not None and found.type != wanted:
            raise NoProblemError(f"its attribute {name} is not of type {kind}")
        return found
