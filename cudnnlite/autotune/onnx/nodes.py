"""What the nodes of an ONNX model ask of cuDNN: a problem for each that cuDNN does as it stands, a reason for the others."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Sequence
from math import isinf
from typing import Any

from cudnnlite.autotune.onnx.file import import_onnx, require, shape_of, show
from cudnnlite.dtypes import dtype_name
from cudnnlite.enums import DataType
from cudnnlite.errors import ArgumentError
from cudnnlite.operations.convolution_backward_problem import ConvolutionBackwardDataProblem
from cudnnlite.operations.convolution_problem import ConvolutionForwardProblem
from cudnnlite.operations.problem import Problem
from cudnnlite.operations.rnn.forward_problem import RNNForwardProblem
from cudnnlite.specs import ConvolutionSpec, FilterSpec, RNNDataSpec, RNNSpec, TensorSpec

FLOATS = {"FLOAT": DataType.FLOAT, "FLOAT16": DataType.HALF, "DOUBLE": DataType.DOUBLE, "BFLOAT16": DataType.BFLOAT16}
FLOAT_NAMES = ", ".join(map(dtype_name, FLOATS.values()))
Known = ChainMap[str, Any]  # by name: a ValueInfoProto, or the TensorProto of what stands in the model
Pads = Sequence[tuple[int, int]]  # of each axis, before and behind


class UnknownShapeError(ArgumentError):
    """No problem can be made of a node, because a shape is not known."""


class OnnxNode:
    """A node, with what is known of the values that it can refer to.

    Its `name` is what it writes where it has none; its `operation` has a domain in front that is not ONNX's own.  It is read
    with a data type instead of the model's, if given, and in layouts by rank; readers add to its `notes`.
    """

    def __init__(self, node: Any, known: Known, prefix: str, dtype: Any, layouts: dict[int, str]) -> None:
        self._node, self._known, self.layouts = node, known, layouts
        self._dtype: DataType | None = dtype
        self.notes: list[str] = []
        self.name = prefix + (node.name or next(filter(None, node.output), node.op_type))
        self.domain = "" if node.domain == "ai.onnx" else str(node.domain)
        self.operation = f"{self.domain}.{node.op_type}" if self.domain else str(node.op_type)

    def has_input(self, position: int) -> bool:
        """Tell whether an optional input is there."""
        return len(self._node.input) > position and bool(self._node.input[position])

    def shape(self, position: int) -> tuple[int, ...]:
        """Return the shape of an input, all of which must be known."""
        name, value = self._input(position)
        shape = shape_of(value)
        if shape is None or not all(isinstance(size, int) for size in shape):
            raise UnknownShapeError(f"the shape of its input {name!r} is not known: {show(shape)}")
        return tuple(map(int, shape))

    def dtype(self) -> DataType:
        """Return the data type asked for, or its first input's: a floating-point type that cuDNN shares with ONNX."""
        name, value = self._input(0)
        number = value.data_type if hasattr(value, "dims") else value.type.tensor_type.elem_type
        if self._dtype is not None:
            return self._dtype
        require(number, f"the data type of its input {name!r} is not known; dtype= gives one")
        kinds = import_onnx().TensorProto.DataType
        kind = kinds.Name(number) if number in kinds.values() else f"of data type {number}"
        require(kind in FLOATS, f"its input {name!r} is {kind.lower()}; cudnnlite convolves {FLOAT_NAMES}")
        return FLOATS[kind]

    def constant(self, position: int) -> list[Any] | None:
        """Return the values of an input, flat, where they stand in the model; None where they are computed."""
        onnx, (name, value) = import_onnx(), self._input(position)
        if not hasattr(value, "dims") or onnx.external_data_helper.uses_external_data(value):
            return None
        try:
            return list(onnx.numpy_helper.to_array(value).reshape(-1).tolist())
        except Exception as error:  # whatever to_array stumbles over
            raise ArgumentError(f"its input {name!r} cannot be read: {error}") from error

    def attributes(self) -> dict[str, Any]:
        """Return its attributes, as given or else as ONNX says, each of the type that it must have; None for the others."""
        onnx, values = import_onnx(), {}
        given = {attribute.name: attribute for attribute in self._node.attribute}
        for name, declared in onnx.defs.get_schema(self._node.op_type).attributes.items():
            found, kind = given.get(name, declared.default_value), declared.type
            is_right = name not in given or (found.type == kind.value and not found.ref_attr_name)
            require(is_right, f"its attribute {name} is not of type {kind.name}")
            values[name] = _plain(onnx.helper.get_attribute_value(found)) if found.name else None
        return values

    def _input(self, position: int) -> tuple[str, Any]:
        require(self.has_input(position), f"it has no input {position}")
        name = self._node.input[position]
        return name, self._known.get(name, import_onnx().ValueInfoProto())


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return tuple(map(_plain, value)) if isinstance(value, list) else value


def convolution(node: OnnxNode) -> Problem:
    """Return the problem of a Conv node."""
    x, w, steps, pads, given = _operands(node)
    sizes = zip(x.shape[2:], w.shape[2:], *steps, strict=True)
    axes = [(size, far * (tap - 1) + 1, stride) for size, tap, stride, far in sizes]
    missing = [max(0, (size - 1) // stride * stride + reach - size) for size, reach, stride in axes]
    both = _parted(given["auto_pad"], pads, missing)
    # the same padding on both sides, which all of cuDNN takes, is as good where the filter gets to nothing that differs
    is_alike = all(
        (size + before + behind - reach) // stride == (size + 2 * before - reach) // stride
        for (before, behind), (size, reach, stride) in zip(both, axes, strict=True)
    )
    both = [(before, before if is_alike else behind) for before, behind in both]
    return ConvolutionForwardProblem(x, w, ConvolutionSpec(both, steps[0], steps[1], given["group"]))


def transposed(node: OnnxNode) -> Problem:
    """Return the problem of a ConvTranspose node: the gradient of a convolution's input, with the node's input as dy."""
    dy, w, steps, pads, given = _operands(node)
    rank, auto, image = len(pads), given["auto_pad"], given["output_shape"]
    extra = given["output_padding"] or (0,) * rank
    fits = {len(extra), len(image or extra)} == {rank}
    require(fits, f"output_padding={extra}, output_shape={image} do not fit {rank} spatial axes")
    axes = zip(dy.shape[2:], w.shape[2:], *steps, extra, strict=True)
    whole = [(size - 1) * stride + far * (tap - 1) + 1 + more for size, tap, stride, far, more in axes]
    if image:
        auto = "SAME_UPPER" if auto == "SAME_UPPER" else "SAME_LOWER"  # as ONNX cuts off what is too much
    elif auto.startswith("SAME"):
        image = tuple(size * stride for size, stride in zip(dy.shape[2:], steps[0], strict=True))
    both = _parted(auto, pads, [max(0, size - wanted) for size, wanted in zip(whole, image or whole, strict=True)])
    image = image or tuple(size - sum(cut) for size, cut in zip(whole, both, strict=True))
    before = [cut[0] for cut in both]
    conv = ConvolutionSpec(before, steps[0], steps[1], given["group"])
    shape = (dy.shape[0], w.shape[1] * conv.groups, *image)
    is_inverse = min(shape) > 0 and conv.output_shape(shape, w.shape) == dy.shape
    so = f"its result is {image}, with {before} cut off in front"
    require(is_inverse, f"{so}; cuDNN cuts off both sides of an axis alike")
    return ConvolutionBackwardDataProblem(w, dy, conv, dy.packed(shape))


def _operands(node: OnnxNode) -> tuple[TensorSpec, FilterSpec, list[Any], Pads, dict[str, Any]]:
    """Return the specs of a node's first two inputs, strides and dilations, pads as they are given, and all attributes."""
    x_shape, w_shape, dtype, given = node.shape(0), node.shape(1), node.dtype(), node.attributes()
    rank = len(x_shape) - 2
    fits = len(x_shape) in node.layouts and len(w_shape) == len(x_shape)
    require(fits, f"x {x_shape} and w {w_shape}: cuDNN convolves 1 to 3 spatial axes")
    taps = given["kernel_shape"]
    require(taps in (None, w_shape[2:]), f"kernel_shape={taps}, but its filter is {w_shape}")
    steps = [given[name] or (1,) * rank for name in ("strides", "dilations")]
    pads = given["pads"] or (0,) * (2 * rank)
    fits = [*map(len, steps), len(pads)] == [rank, rank, 2 * rank] and min(map(min, steps)) > 0
    require(fits, f"strides={steps[0]}, dilations={steps[1]}, pads={pads} do not fit {rank} spatial axes")
    layout, both = node.layouts[rank + 2], list(zip(pads[:rank], pads[rank:], strict=True))
    return TensorSpec(x_shape, dtype, layout), FilterSpec(w_shape, dtype, layout), steps, both, given


def _parted(auto: str, given: Pads, totals: Sequence[int]) -> Pads:
    """Return the padding of each axis by auto_pad: as given, none, or a total of which one side gets the odd one."""
    ways = {
        "NOTSET": given, "VALID": [(0, 0)] * len(given),
        "SAME_UPPER": [(total // 2, total - total // 2) for total in totals],
        "SAME_LOWER": [(total - total // 2, total // 2) for total in totals],
    }  # fmt: skip
    require(auto in ways, f"auto_pad={auto!r} is not one of NOTSET, SAME_UPPER, SAME_LOWER, VALID")
    return ways[auto]


def recurrent(node: OnnxNode) -> Problem:
    """Return the problem of an LSTM, GRU or RNN node: one layer."""
    given = node.attributes()
    direction, known = given["direction"], {"forward": 1, "reverse": 1, "bidirectional": 2}
    require(direction in known, f"direction={direction!r} is not one of {', '.join(known)}")
    directions = known[direction]
    cell = _cell(node, given, directions)  # before the shapes: what cuDNN has not is skipped, whatever they are
    x_shape = node.shape(0)
    require(len(x_shape) == 3, f"its input has shape {x_shape}; allowed: three axes")
    hidden = given["hidden_size"] or (0, *node.shape(2))[-1]
    rows = {"lstm": 4, "gru": 3}.get(cell, 1) * hidden
    for name, position, columns in (("W", 1, x_shape[2]), ("R", 2, hidden)):
        found, wanted = node.shape(position), (directions, rows, columns)
        require(found == wanted, f"{name} has shape {found}; hidden_size={hidden} and its input ask for {wanted}")
    lengths, dtype = node.constant(4) if node.has_input(4) else None, node.dtype()
    spec = RNNSpec(cell, x_shape[2], hidden, bidirectional=directions == 2, bias=node.has_input(3), dtype=dtype)
    data = RNNDataSpec(x_shape, lengths, dtype, "batch_major" if given.get("layout") == 1 else "sequence_major")
    if node.has_input(4) and lengths is None:
        node.notes.append(f"the sequences' lengths are not in the model; all are taken to be {data.max_length}")
    if direction == "reverse":
        node.notes.append("direction=reverse, which cuDNN does as forward on sequences turned round")
    return RNNForwardProblem(spec, data)


def _cell(node: OnnxNode, given: dict[str, Any], directions: int) -> str:
    """Return cuDNN's name of the cell; ArgumentError where cuDNN's is another."""
    cell = node.operation.lower()
    named = [name.lower() for name in given["activations"] or ()]
    only = {"lstm": "sigmoid, tanh, tanh", "gru": "sigmoid, tanh"}.get(cell, "tanh or relu")
    if cell == "rnn":
        cell = "relu" if named[:1] == ["relu"] else "tanh"
    usual = directions * (only.split(", ") if cell in ("lstm", "gru") else [cell])
    given_names, clip = ", ".join(given["activations"] or ()), given["clip"] or 0
    as_usual = not named or named[: len(usual)] == usual
    require(as_usual, f"activations={given_names}; cuDNN has {only} only, in every direction")
    free = given["clip"] is None or isinf(clip)
    require(free, f"clip={clip:g} bounds what goes into the activations; cuDNN bounds the cell state only")
    require(not given.get("input_forget"), "input_forget=1 couples two gates, which cuDNN's LSTM keeps apart")
    after = cell != "gru" or given["linear_before_reset"]
    require(after, "linear_before_reset=0; cuDNN's GRU resets after the recurrent product")
    has_peepholes = cell == "lstm" and node.has_input(7)
    require(not has_peepholes, "it has peepholes (input P), which cuDNN's LSTM does not have")
    return cell


_READERS: dict[str, Callable[[OnnxNode], Problem]] = {
    "Conv": convolution, "ConvTranspose": transposed, "LSTM": recurrent, "GRU": recurrent, "RNN": recurrent,
}  # fmt: skip
_QUANTIZED = "a quantized convolution, for which there is no kind of problem yet"
_REASONS = {
    "ConvInteger": _QUANTIZED, "QLinearConv": _QUANTIZED, "DeformConv": "cuDNN has no deformable convolution",
}  # fmt: skip


def problem_of(node: OnnxNode) -> Problem | None:
    """Return the problem of a node, None for operations of other kinds; ArgumentError says why cuDNN does not do it so."""
    require(node.operation not in _REASONS, _REASONS.get(node.operation, ""))
    is_like = any(word in node.operation.rpartition(".")[2].upper() for word in ("CONV", "LSTM", "GRU", "RNN"))
    require(not (node.domain and is_like), f"an operation of {node.domain}, which is not ONNX's own")
    return _READERS[node.operation](node) if node.operation in _READERS else None
