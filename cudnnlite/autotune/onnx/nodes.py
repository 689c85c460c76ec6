"""What the nodes of an ONNX model ask of cuDNN: a problem for each that cuDNN does as it stands, a reason for the others."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Sequence
from math import inf, isinf
from typing import Any

import numpy as np

from cudnnlite.arguments import refused_as
from cudnnlite.dtypes import dtype_name
from cudnnlite.enums import DataType
from cudnnlite.errors import ArgumentError
from cudnnlite.operations.convolution.backward import convolution_backward_data
from cudnnlite.operations.convolution.forward import convolution_forward
from cudnnlite.problems.problem import Problem
from cudnnlite.problems.rnn import forward_problem
from cudnnlite.specs import ConvolutionSpec, FilterSpec, RNNDataSpec, RNNSpec, TensorSpec

FLOATS = {
    "FLOAT": DataType.FLOAT,
    "FLOAT16": DataType.HALF,
    "DOUBLE": DataType.DOUBLE,
    "BFLOAT16": DataType.BFLOAT16,
}
FLOAT_NAMES = ", ".join(map(dtype_name, FLOATS.values()))
Known = ChainMap[
    str, Any
]  # by name: a ValueInfoProto, or the TensorProto of what stands in the model
Axes = np.ndarray[Any, Any]  # for each spatial axis a number: Python's own, for a model may say any


class OnnxNode:
    """A node, with what is known of the values that it can refer to.

    Its `operation` has a domain in front that is not ONNX's own.  It is read with a data type
    instead of the model's, if given, and in layouts by rank.  Readers add to its `notes`;
    `lacks_shape` is set where they ask for a shape that is not known, and `open_axes` to the axes
    of it without a size.
    """

    def __init__(
        self, onnx: Any, proto: Any, known: Known, dtype: DataType | None, layouts: dict[int, str]
    ) -> None:
        self._onnx, self._proto, self._values, self._dtype, self.layouts = (
            onnx,
            proto,
            known,
            dtype,
            layouts,
        )
        self.operation = str(
            proto.op_type if proto.domain in ("", "ai.onnx") else f"{proto.domain}.{proto.op_type}"
        )
        self.inputs = (
            *proto.input,
            *[""] * 8,
        )  # names, empty where there is none; an LSTM has eight
        self.notes: list[str] = []
        self.lacks_shape = False
        self.open_axes: tuple[str, ...] = ()

    def shape(self, position: int) -> tuple[int, ...]:
        """Return the shape of an input, all of which must be known."""
        name = self.inputs[position]
        require(name, f"it has no input {position}")
        shape = shape_of(self._values.get(name))
        self.open_axes = tuple(size or "?" for size in shape or () if isinstance(size, str))
        self.lacks_shape = shape is None or bool(self.open_axes)
        require(
            not self.lacks_shape, f"the shape of its input {name!r} is not known: {show(shape)}"
        )
        return tuple(map(int, shape or ()))

    def dtype(self) -> DataType:
        """Return the data type asked for, or that of its first input, whose shape is known: one that cuDNN shares with ONNX."""
        if self._dtype is not None:
            return self._dtype
        name, kinds = self.inputs[0], self._onnx.TensorProto.DataType
        value = self._values[name]
        number = value.data_type if hasattr(value, "dims") else value.type.tensor_type.elem_type
        require(number, f"the data type of its input {name!r} is not known; dtype= gives one")
        kind = kinds.Name(number) if number in kinds.values() else f"of data type {number}"
        require(
            kind in FLOATS,
            f"its input {name!r} is {kind.lower()}; cudnnlite convolves {FLOAT_NAMES}",
        )
        return FLOATS[kind]

    def constant(self, position: int) -> list[Any] | None:
        """Return the values of an input, flat, where they stand in the model; None where they do not, or there is none."""
        onnx, name = self._onnx, self.inputs[position]
        value = self._values.get(name)
        if not hasattr(value, "dims") or onnx.external_data_helper.uses_external_data(value):
            return None
        with refused_as(ArgumentError, f"its input {name!r} cannot be read", Exception):
            return list(
                onnx.numpy_helper.to_array(value).ravel().tolist()
            )  # which stumbles over many things

    def attributes(self) -> dict[str, Any]:
        """Return its attributes, as given or else as ONNX says, each of the type that it must have; None for the others."""
        values, given = {}, {attribute.name: attribute for attribute in self._proto.attribute}
        for name, declared in self._onnx.defs.get_schema(self._proto.op_type).attributes.items():
            found, kind = given.get(name, declared.default_value), declared.type
            is_right = name not in given or (found.type == kind.value and not found.ref_attr_name)
            require(is_right, f"its attribute {name} is not of type {kind.name}")
            values[name] = _plain(self._onnx.helper.get_attribute_value(found))
        return values


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return tuple(map(_plain, value)) if isinstance(value, list) else value


def convolution(node: OnnxNode) -> Problem:
    """Return the problem of a Conv node."""
    x, w, conv, (size, stride, reach), given = _operands(node)
    before, behind = _parted(
        given["auto_pad"], given["pads"], (size - 1) // stride * stride + reach - size
    )
    # the same padding on both sides, which all of cuDNN takes, is as good where the filter gets to
    # nothing that differs
    if np.all((size + before + behind - reach) // stride == (size + 2 * before - reach) // stride):
        behind = before
    return convolution_forward.problem(
        x, w, conv.replace(padding=[*zip(before, behind, strict=True)])
    )


def transposed(node: OnnxNode) -> Problem:
    """Return the problem of a ConvTranspose node: the gradient of a convolution's input, with the node's input as dy."""
    dy, w, conv, (size, stride, reach), given = _operands(node)
    rank, auto, image = len(size), given["auto_pad"], given["output_shape"]
    extra = given["output_padding"] or (0,) * rank
    fits = {len(extra), len(image or extra)} == {rank}
    require(fits, f"output_padding={extra}, output_shape={image} do not fit {rank} spatial axes")
    whole = (size - 1) * stride + reach + extra
    if image:
        auto = (
            "SAME_UPPER" if auto == "SAME_UPPER" else "SAME_LOWER"
        )  # as ONNX cuts off what is too much
    elif auto.startswith("SAME"):
        image = tuple(size * stride)
    before, behind = _parted(auto, given["pads"], whole - (image or whole))
    image = image or tuple(whole - before - behind)
    conv = conv.replace(padding=[*before])
    shape = (dy.shape[0], w.shape[1] * conv.groups, *image)
    is_inverse = min(shape) > 0 and conv.output_shape(shape, w.shape) == dy.shape
    so = f"its result is {image}, with {[*before]} cut off in front"
    require(is_inverse, f"{so}; cuDNN cuts off both sides of an axis alike")
    return convolution_backward_data.problem(w, dy, conv, x=dy.packed(shape))


def _operands(
    node: OnnxNode,
) -> tuple[TensorSpec, FilterSpec, ConvolutionSpec, tuple[Axes, ...], dict[str, Any]]:
    """Return the specs of a node's two inputs and of its steps; the first's sizes, strides, the filter's reach; attributes."""
    x_shape, w_shape, dtype, given = node.shape(0), node.shape(1), node.dtype(), node.attributes()
    rank, layout, taps = len(x_shape) - 2, node.layouts.get(len(x_shape)), given["kernel_shape"]
    require(
        layout and len(w_shape) == rank + 2,
        f"x {x_shape} and w {w_shape}: cuDNN convolves 1 to 3 spatial axes",
    )
    require(taps in (None, w_shape[2:]), f"kernel_shape={taps}, but its filter is {w_shape}")
    strides, dilations = (given[name] or (1,) * rank for name in ("strides", "dilations"))
    pads = given["pads"] or (0,) * (2 * rank)
    fits = [len(strides), len(dilations), len(pads)] == [rank, rank, 2 * rank] and min(
        strides + dilations
    ) > 0
    require(
        fits,
        f"strides={strides}, dilations={dilations}, pads={pads} do not fit {rank} spatial axes",
    )
    x, w = TensorSpec(x_shape, dtype, layout), FilterSpec(w_shape, dtype, layout)
    conv = ConvolutionSpec(0, strides, dilations, given["group"])
    rows = np.array(
        (*x_shape[2:], *w_shape[2:], *strides, *dilations, *pads), dtype=object
    ).reshape(6, rank)
    size, tap, stride, dilation, *given["pads"] = rows
    return x, w, conv, (size, stride, dilation * (tap - 1) + 1), given


def _parted(auto: str, given: list[Axes], totals: Axes) -> list[Axes]:
    """Return the padding before and behind axes by auto_pad: as given, none, or totals of which one side gets the odd one."""
    less, more = np.maximum(0, totals) // 2, (np.maximum(0, totals) + 1) // 2
    ways = {
        "NOTSET": given,
        "VALID": [0 * less, 0 * less],
        "SAME_UPPER": [less, more],
        "SAME_LOWER": [more, less],
    }
    require(auto in ways, f"auto_pad={auto!r} is not one of NOTSET, SAME_UPPER, SAME_LOWER, VALID")
    return ways[auto]


def recurrent(node: OnnxNode) -> Problem:
    """Return the problem of an LSTM, GRU or RNN node: one layer."""
    given, kind = node.attributes(), node.operation
    direction, known = given["direction"], {"forward": 1, "reverse": 1, "bidirectional": 2}
    require(direction in known, f"direction={direction!r} is not one of {', '.join(known)}")
    directions = known[direction]
    # before the shapes: what cuDNN's cells have not is skipped, whatever they are
    gates, only = {"LSTM": (4, "sigmoid, tanh, tanh"), "GRU": (3, "sigmoid, tanh")}.get(
        kind, (1, "tanh or relu")
    )
    usual = [directions * names.split(", ") for names in only.split(" or ")]
    activations, clip = given["activations"] or (), inf if given["clip"] is None else given["clip"]
    named = [name.lower() for name in activations][: len(usual[0])] or usual[0]
    require(
        named in usual,
        f"activations={', '.join(activations)}; cuDNN has {only} only, in every direction",
    )
    require(
        isinf(clip),
        f"clip={clip:g} bounds what goes into the activations; cuDNN bounds the cell state only",
    )
    require(
        not given.get("input_forget"),
        "input_forget=1 couples two gates, which cuDNN's LSTM keeps apart",
    )
    resets_after = given.get("linear_before_reset", 1)
    require(resets_after, "linear_before_reset=0; cuDNN's GRU resets after the recurrent product")
    require(
        kind != "LSTM" or not node.inputs[7],
        "it has peepholes (input P), which cuDNN's LSTM does not have",
    )
    x_shape = node.shape(0)
    require(len(x_shape) == 3, f"its input has shape {x_shape}; allowed: three axes")
    hidden = given["hidden_size"] or (0, *node.shape(2))[-1]
    for name, position, columns in (("W", 1, x_shape[2]), ("R", 2, hidden)):
        found, wanted = node.shape(position), (directions, gates * hidden, columns)
        require(
            found == wanted,
            f"{name} has shape {found}; hidden_size={hidden} and its input ask for {wanted}",
        )
    lengths, dtype, cell = (
        node.constant(4),
        node.dtype(),
        named[0] if kind == "RNN" else kind.lower(),
    )
    spec = RNNSpec(
        cell, x_shape[2], hidden, 1, directions == 2, bias=bool(node.inputs[3]), dtype=dtype
    )
    data = RNNDataSpec(
        x_shape, lengths, dtype, "batch_major" if given.get("layout") == 1 else "sequence_major"
    )
    if node.inputs[4] and lengths is None:
        node.notes.append(
            f"the sequences' lengths are not in the model; all are taken to be {data.max_length}"
        )
    if direction == "reverse":
        node.notes.append(
            "direction=reverse, which cuDNN does as forward on sequences turned round"
        )
    return forward_problem(spec, data)


_READERS: dict[str, Callable[[OnnxNode], Problem]] = {
    "Conv": convolution,
    "ConvTranspose": transposed,
}
_READERS |= dict.fromkeys(("LSTM", "GRU", "RNN"), recurrent)
_QUANTIZED = "a quantized convolution, for which there is no kind of problem yet"
_REASONS = {
    "ConvInteger": _QUANTIZED,
    "QLinearConv": _QUANTIZED,
    "DeformConv": "cuDNN has no deformable convolution",
}


def problem_of(node: OnnxNode) -> Problem | None:
    """Return the problem of a node, None for operations of other kinds; ArgumentError says why cuDNN does not do it so."""
    require(node.operation not in _REASONS, _REASONS.get(node.operation, ""))
    domain, _, kind = node.operation.rpartition(".")
    is_like = any(word in kind.upper() for word in ("CONV", "LSTM", "GRU", "RNN"))
    require(not (domain and is_like), f"an operation of {domain}, which is not ONNX's own")
    return _READERS[node.operation](node) if node.operation in _READERS else None


def shape_of(value: Any) -> tuple[int | str, ...] | None:
    """Return a tensor's or a value's shape: names for symbolic sizes, empty if they mean nothing; None without a rank."""
    if hasattr(value, "dims"):
        return tuple(value.dims)
    if value is None or not value.type.tensor_type.HasField("shape"):
        return None
    # Some exporters write 0 or -1 for what is symbolic; unk__ is what inference, or we, called what
    # has no name.
    names = [(dim.dim_value, dim.dim_param) for dim in value.type.tensor_type.shape.dim]
    return tuple(
        size if size > 0 else "" if name.startswith("unk__") else name for size, name in names
    )


def show(shape: Sequence[int | str] | None) -> str:
    """Return a shape as messages have it."""
    if shape is None:
        return "unknown"
    return f"({', '.join(str(size) or '?' for size in shape)}{',' if len(shape) == 1 else ''})"


def require(holds: Any, why: str) -> None:
    """Raise an ArgumentError unless something holds."""
    if not holds:
        raise ArgumentError(why)
