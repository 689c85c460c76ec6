"""The problems of an ONNX model's nodes, or why cuDNN does not compute a node as ONNX does."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Sequence
from math import inf, isinf
from typing import Any, NamedTuple

import numpy as np

from cudnnlite import (
    ConvolutionSpec,
    FilterSpec,
    RNNSpec,
    TensorSpec,
    convolution_backward_data,
    convolution_forward,
)
from cudnnlite.arguments import refused_as
from cudnnlite.dtypes import dtype_name
from cudnnlite.enums import DataType
from cudnnlite.errors import ArgumentError
from cudnnlite.problems.rnn import FORWARD as RNN_FORWARD
from cudnnlite.specs import RNNDataSpec
from cudnnlite.types import Problem
from cudnnlite.workbench.tuning.onnx.protobuf import format_shape, require, shape_of

DTYPES = {
    "FLOAT": DataType.FLOAT,
    "FLOAT16": DataType.HALF,
    "DOUBLE": DataType.DOUBLE,
    "BFLOAT16": DataType.BFLOAT16,
}
DTYPE_NAMES = ", ".join(map(dtype_name, DTYPES.values()))
# Values by name: a ValueInfoProto, or the TensorProto of a value that is in the model.
Values = ChainMap[str, Any]
# A number for each spatial axis, as Python's own integers: a model may have integers of any size.
Axes = np.ndarray[Any, Any]

_MAX_INPUTS = 8  # an LSTM has as many
# Positions of a recurrent layer's inputs.
_W, _R, _BIAS, _LENGTHS, _PEEPHOLES = 1, 2, 3, 4, 7


class OnnxNode:
    """A node, with the values that it can refer to.

    `operation` is the name of the operator, after its domain if that is not ONNX's own.  `dtype`
    replaces the model's data type, and `layouts` are by rank.  Readers add to `notes`.  If a reader
    calls `shape` and the shape is not known, `lacks_shape` is true, and `open_axes` has the names
    of the axes without a size.
    """

    def __init__(
        self,
        onnx: Any,
        proto: Any,
        values: Values,
        dtype: DataType | None,
        layouts: dict[int, str],
    ) -> None:
        self._onnx = onnx
        self._proto = proto
        self._values = values
        self._dtype = dtype
        self.layouts = layouts
        is_standard = proto.domain in ("", "ai.onnx")
        self.operation = str(proto.op_type if is_standard else f"{proto.domain}.{proto.op_type}")
        # ONNX has an empty name for an input that is left out. Further empty names let every
        # position be looked up.
        self.inputs = (*proto.input, *[""] * _MAX_INPUTS)
        self.notes: list[str] = []
        self.lacks_shape = False
        self.open_axes: tuple[str, ...] = ()

    def shape(self, position: int) -> tuple[int, ...]:
        """Return the shape of an input; ArgumentError if a size of it is unknown."""
        name = self.inputs[position]
        require(name, f"it has no input {position}")
        shape = shape_of(self._values.get(name))
        self.open_axes = tuple(size or "?" for size in shape or () if isinstance(size, str))
        self.lacks_shape = shape is None or bool(self.open_axes)
        require(
            not self.lacks_shape,
            f"the shape of its input {name!r} is not known: {format_shape(shape)}",
        )
        return tuple(map(int, shape or ()))

    def dtype(self) -> DataType:
        """Return the data type that replaces the model's, or else that of the first input.

        Call it after `shape(0)`, which refuses an unknown input.
        """
        if self._dtype is not None:
            return self._dtype
        name = self.inputs[0]
        value = self._values[name]
        number = value.data_type if hasattr(value, "dims") else value.type.tensor_type.elem_type
        require(number, f"the data type of its input {name!r} is not known; dtype= gives one")
        onnx_types = self._onnx.TensorProto.DataType
        if number in onnx_types.values():
            type_name = onnx_types.Name(number)
        else:
            type_name = f"of data type {number}"
        require(
            type_name in DTYPES,
            f"its input {name!r} is {type_name.lower()}; cudnnlite convolves {DTYPE_NAMES}",
        )
        return DTYPES[type_name]

    def constant(self, position: int) -> list[Any] | None:
        """Return the values of an input as a flat list.

        None if the node has no such input, or if the model does not contain its values.
        """
        onnx = self._onnx
        name = self.inputs[position]
        value = self._values.get(name)
        if not hasattr(value, "dims") or onnx.external_data_helper.uses_external_data(value):
            return None
        # onnx raises errors of many kinds for a tensor that is not a valid one.
        with refused_as(ArgumentError, f"its input {name!r} cannot be read", Exception):
            return list(onnx.numpy_helper.to_array(value).ravel().tolist())

    def attributes(self) -> dict[str, Any]:
        """Return the values of all attributes that the operator declares.

        If the node does not set an attribute, its value is ONNX's default, or None without a
        default.  ArgumentError if an attribute is not of the type that the operator declares.
        """
        attributes = {attribute.name: attribute for attribute in self._proto.attribute}
        schema = self._onnx.defs.get_schema(self._proto.op_type)
        values: dict[str, Any] = {}
        for name, declared in schema.attributes.items():
            attribute = attributes.get(name)
            if attribute is None:
                attribute = declared.default_value
            else:
                kind = declared.type
                has_type = attribute.type == kind.value and not attribute.ref_attr_name
                require(has_type, f"its attribute {name} is not of type {kind.name}")
            values[name] = _to_plain(self._onnx.helper.get_attribute_value(attribute))
        return values


def _to_plain(value: Any) -> Any:
    """Return an attribute's value with texts as `str` and lists as tuples."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, list):
        return tuple(map(_to_plain, value))
    return value


class _Convolution(NamedTuple):
    """What Conv and ConvTranspose nodes have in common."""

    image: TensorSpec  # the first input
    w: FilterSpec
    conv: ConvolutionSpec  # without padding
    sizes: Axes  # of the image
    strides: Axes
    extents: Axes  # pixels from a filter's first tap to its last one, both included
    pads: tuple[Axes, Axes]  # in front of the axes and behind them, by the attribute
    attributes: dict[str, Any]

    def padding(self, auto_pad: str, totals: Axes) -> tuple[Axes, Axes]:
        """Return the padding in front of the axes and behind them.

        If `auto_pad` is SAME_UPPER or SAME_LOWER, the totals are divided between the two sides, and
        one side gets the odd pixel.
        """
        totals = np.maximum(0, totals)
        smaller = totals // 2
        larger = totals - smaller
        paddings = {
            "NOTSET": self.pads,
            "VALID": (0 * totals, 0 * totals),
            "SAME_UPPER": (smaller, larger),
            "SAME_LOWER": (larger, smaller),
        }
        allowed = "NOTSET, SAME_UPPER, SAME_LOWER, VALID"
        require(auto_pad in paddings, f"auto_pad={auto_pad!r} is not one of {allowed}")
        return paddings[auto_pad]


def convolution_problem(node: OnnxNode) -> Problem:
    """Return the problem of a Conv node."""
    convolution = _read_convolution(node)
    sizes, strides, extents = convolution.sizes, convolution.strides, convolution.extents
    totals = (sizes - 1) // strides * strides + extents - sizes
    before, behind = convolution.padding(convolution.attributes["auto_pad"], totals)
    # All of cuDNN's interfaces take equal padding on both sides.  It gives the same result if the
    # output has the same size: then the filter never reaches the pixels that differ.
    last_filter = (sizes + before + behind - extents) // strides
    last_filter_if_symmetric = (sizes + 2 * before - extents) // strides
    if np.all(last_filter == last_filter_if_symmetric):
        behind = before
    conv = convolution.conv.replace(padding=list(zip(before, behind, strict=True)))
    return convolution_forward.problem(convolution.image, convolution.w, conv)


def transposed_convolution_problem(node: OnnxNode) -> Problem:
    """Return the problem of a ConvTranspose node: the gradient of a convolution's input.

    The node's input is `dy` of the gradient, and the node's output is `dx`.
    """
    convolution = _read_convolution(node)
    dy, w = convolution.image, convolution.w
    image, before = _transposed_image(convolution)
    shape = (dy.shape[0], w.shape[1] * convolution.conv.groups, *image)
    # The pixels cut off behind, for which a convolution of the image has the shape of dy.
    uncut = (convolution.sizes - 1) * convolution.strides + convolution.extents
    behind = uncut - image - before
    for padding in (list(before), list(zip(before, behind, strict=True))):
        conv = convolution.conv.replace(padding=padding) if np.min(padding) >= 0 else None
        if conv and min(shape) > 0 and conv.output_shape(shape, w.shape) == dy.shape:
            return convolution_backward_data.problem(w, dy, conv, x=dy.packed(shape))
    raise ArgumentError(
        f"its result is {image}, with {list(before)} cut off in front; no convolution of such "
        f"images has results of {tuple(dy.shape[2:])}"
    )


def _transposed_image(convolution: _Convolution) -> tuple[tuple[int, ...], Axes]:
    """Return the sizes of a ConvTranspose node's output, and the pixels to cut off in front."""
    attributes = convolution.attributes
    sizes, strides = convolution.sizes, convolution.strides
    rank = len(sizes)
    auto_pad, image = attributes["auto_pad"], attributes["output_shape"]
    output_padding = attributes["output_padding"] or (0,) * rank
    require(
        len(output_padding) == rank and (not image or len(image) == rank),
        f"output_padding={output_padding}, output_shape={image} do not fit {rank} spatial axes",
    )
    uncut = (sizes - 1) * strides + convolution.extents + output_padding
    if image:
        # ONNX divides the pixels to cut off, even if auto_pad is NOTSET.
        auto_pad = "SAME_UPPER" if auto_pad == "SAME_UPPER" else "SAME_LOWER"
    elif auto_pad.startswith("SAME"):
        image = tuple(sizes * strides)
    before, behind = convolution.padding(auto_pad, uncut - (image or uncut))
    return image or tuple(uncut - before - behind), before


def _read_convolution(node: OnnxNode) -> _Convolution:
    """Read a Conv or ConvTranspose node; ArgumentError if its parts do not fit each other."""
    x_shape, w_shape = node.shape(0), node.shape(1)
    dtype = node.dtype()
    attributes = node.attributes()
    rank = len(x_shape) - 2
    layout = node.layouts.get(len(x_shape))
    require(
        layout and len(w_shape) == rank + 2,
        f"x {x_shape} and w {w_shape}: cuDNN convolves 1 to 3 spatial axes",
    )
    kernel_shape = attributes["kernel_shape"]
    require(
        kernel_shape in (None, w_shape[2:]),
        f"kernel_shape={kernel_shape}, but its filter is {w_shape}",
    )
    strides = attributes["strides"] or (1,) * rank
    dilations = attributes["dilations"] or (1,) * rank
    pads = attributes["pads"] or (0,) * (2 * rank)
    has_lengths = [len(strides), len(dilations), len(pads)] == [rank, rank, 2 * rank]
    require(
        has_lengths and min(strides + dilations) > 0,
        f"strides={strides}, dilations={dilations}, pads={pads} do not fit {rank} spatial axes",
    )
    return _Convolution(
        image=TensorSpec(x_shape, dtype, layout),
        w=FilterSpec(w_shape, dtype, layout),
        conv=ConvolutionSpec(0, strides, dilations, attributes["group"]),
        sizes=_axes(x_shape[2:]),
        strides=_axes(strides),
        extents=_axes(dilations) * (_axes(w_shape[2:]) - 1) + 1,
        pads=(_axes(pads[:rank]), _axes(pads[rank:])),
        attributes=attributes,
    )


def _axes(numbers: Sequence[int]) -> Axes:
    return np.array(numbers, dtype=object)


class _RecurrentLayer(NamedTuple):
    """A kind of recurrent layer, as cuDNN has it."""

    gates: int
    activations: tuple[tuple[str, ...], ...]  # alternatives, each for one direction

    def __str__(self) -> str:
        return " or ".join(", ".join(names) for names in self.activations)


_CELLS = {
    "LSTM": _RecurrentLayer(4, (("sigmoid", "tanh", "tanh"),)),
    "GRU": _RecurrentLayer(3, (("sigmoid", "tanh"),)),
    "RNN": _RecurrentLayer(1, (("tanh",), ("relu",))),
}
_DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}


def recurrent_problem(node: OnnxNode) -> Problem:
    """Return the problem of an LSTM, GRU or RNN node: one layer."""
    attributes = node.attributes()
    direction = attributes["direction"]
    require(
        direction in _DIRECTIONS,
        f"direction={direction!r} is not one of {', '.join(_DIRECTIONS)}",
    )
    directions = _DIRECTIONS[direction]
    # If cuDNN does not have the cell, that is the reason, even if a shape is unknown too.
    activation = _check_activations(node, attributes, directions)
    _check_equations(node, attributes)
    x_shape, hidden_size = _check_weights(node, attributes, directions)
    lengths = node.constant(_LENGTHS)
    cell_mode: Any = activation if node.operation == "RNN" else node.operation.lower()
    spec = RNNSpec(
        cell_mode,
        x_shape[2],
        hidden_size,
        1,
        directions == 2,
        bias=bool(node.inputs[_BIAS]),
        dtype=node.dtype(),
    )
    layout = "batch_major" if attributes.get("layout") == 1 else "sequence_major"
    data = RNNDataSpec(x_shape, lengths, spec.dtype, layout)
    if node.inputs[_LENGTHS] and lengths is None:
        node.notes.append(
            f"the sequences' lengths are not in the model; all are taken to be {data.max_length}"
        )
    if direction == "reverse":
        node.notes.append(
            "direction=reverse, which cuDNN does as forward on sequences turned round"
        )
    return Problem(RNN_FORWARD, spec=spec, data=data, training=False)


def _check_activations(node: OnnxNode, attributes: dict[str, Any], directions: int) -> str:
    """Return the first activation of a recurrent layer; ArgumentError if cuDNN has other ones."""
    cell = _CELLS[node.operation]
    allowed = [list(names) * directions for names in cell.activations]
    activations = attributes["activations"] or ()
    names = [name.lower() for name in activations]
    names = names[: len(allowed[0])] or allowed[0]
    require(
        names in allowed,
        f"activations={', '.join(activations)}; cuDNN has {cell} only, in every direction",
    )
    return names[0]


def _check_equations(node: OnnxNode, attributes: dict[str, Any]) -> None:
    """Refuse a recurrent layer that computes something else than cuDNN's."""
    clip = inf if attributes["clip"] is None else attributes["clip"]
    require(
        isinf(clip),
        f"clip={clip:g} bounds what goes into the activations; cuDNN bounds the cell state only",
    )
    require(
        not attributes.get("input_forget"),
        "input_forget=1 couples two gates, which cuDNN's LSTM keeps apart",
    )
    require(
        attributes.get("linear_before_reset", 1),
        "linear_before_reset=0; cuDNN's GRU resets after the recurrent product",
    )
    require(
        node.operation != "LSTM" or not node.inputs[_PEEPHOLES],
        "it has peepholes (input P), which cuDNN's LSTM does not have",
    )


def _check_weights(
    node: OnnxNode, attributes: dict[str, Any], directions: int
) -> tuple[tuple[int, ...], int]:
    """Return the shape of a recurrent layer's input, and its hidden size.

    ArgumentError if the weights do not fit them.
    """
    x_shape = node.shape(0)
    require(len(x_shape) == 3, f"its input has shape {x_shape}; allowed: three axes")
    hidden_size = attributes["hidden_size"] or _last_size(node.shape(_R))
    rows = _CELLS[node.operation].gates * hidden_size
    for name, position, columns in (("W", _W, x_shape[2]), ("R", _R, hidden_size)):
        shape = node.shape(position)
        require(
            shape == (directions, rows, columns),
            f"{name} has shape {shape}; hidden_size={hidden_size} and its input need "
            f"{(directions, rows, columns)}",
        )
    return x_shape, hidden_size


def _last_size(shape: tuple[int, ...]) -> int:
    return shape[-1] if shape else 0


_READERS: dict[str, Callable[[OnnxNode], Problem]] = {
    "Conv": convolution_problem,
    "ConvTranspose": transposed_convolution_problem,
    "LSTM": recurrent_problem,
    "GRU": recurrent_problem,
    "RNN": recurrent_problem,
}
_QUANTIZED = "a quantized convolution, for which there is no kind of problem yet"
_UNSUPPORTED = {
    "ConvInteger": _QUANTIZED,
    "QLinearConv": _QUANTIZED,
    "DeformConv": "cuDNN has no deformable convolution",
}


def problem_of(node: OnnxNode) -> Problem | None:
    """Return the problem of a node, or None if it is neither a convolution nor a recurrent layer.

    ArgumentError if cuDNN does not compute the same; the message says why.
    """
    require(node.operation not in _UNSUPPORTED, _UNSUPPORTED.get(node.operation, ""))
    domain, _, operator = node.operation.rpartition(".")
    is_similar = any(word in operator.upper() for word in ("CONV", "LSTM", "GRU", "RNN"))
    require(not (domain and is_similar), f"an operation of {domain}, which is not ONNX's own")
    reader = _READERS.get(node.operation)
    return None if reader is None else reader(node)
