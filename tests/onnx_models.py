"""ONNX models to read: small ones of any nodes, and ResNet-50 without its weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from cudnnlite.workbench.tuning.problem_list import ProblemList

Array = np.ndarray[Any, Any]
Shape = Sequence[int | str | None] | None
DTYPES = {
    "float32": TensorProto.FLOAT,
    "float64": TensorProto.DOUBLE,
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
}


IMAGE, FILTER = (2, 6, 12, 13), (4, 6, 3, 3)
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def value(name: str, shape: Shape = None, dtype: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    """Return the type of a value; sizes may be names or None, and so may the whole shape."""
    return helper.make_tensor_value_info(name, dtype, shape)


def absent(name: str, shape: Sequence[int], dtype: int = TensorProto.FLOAT) -> onnx.TensorProto:
    """Return an initializer whose data lies in a file that does not exist."""
    tensor = TensorProto(name=name, data_type=dtype, dims=shape, data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="absent.bin")
    return tensor


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Shape] | Sequence[onnx.ValueInfoProto],
    constants: Mapping[str, Array] | Sequence[onnx.TensorProto] = (),
    *,
    outputs: Sequence[str] | None = None,
    opset: int = 22,
    functions: Sequence[onnx.FunctionProto] = (),
    domains: Sequence[str] = (),
    dtype: int = TensorProto.FLOAT,
) -> onnx.ModelProto:
    """Return a model whose outputs are those of the last node; inference finds their types."""
    if isinstance(inputs, Mapping):
        inputs = [value(name, shape, dtype) for name, shape in inputs.items()]
    if isinstance(constants, Mapping):
        constants = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    names = (
        [name for name in nodes[-1].output if name] if outputs is None and nodes else outputs or []
    )
    graph = helper.make_graph(
        nodes, "a graph", inputs, [value(name, None, dtype) for name in names], constants
    )
    opsets = [
        helper.make_opsetid("", opset),
        *(helper.make_opsetid(domain, 1) for domain in domains),
    ]
    return helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=10)


def conv(
    x: str = "x", w: str = "w", y: str = "y", name: str = "conv", **attributes: Any
) -> onnx.NodeProto:
    return helper.make_node("Conv", [x, w], [y], name, **attributes)


def one_conv(
    x: Any = IMAGE, w: Any = FILTER, dtype: int = TensorProto.FLOAT, **attributes: Any
) -> onnx.ModelProto:
    """Return a model of one convolution."""
    return model([conv(**attributes)], {"x": x}, [absent("w", w, dtype)], dtype=dtype)


def one_rnn(
    kind: str = "LSTM",
    x: Any = (5, 3, 6),
    hidden: int = 4,
    directions: int = 1,
    *,
    bias: bool = True,
    lengths: Any = None,
    peepholes: bool = False,
    dtype: int = TensorProto.FLOAT,
    **attributes: Any,
) -> onnx.ModelProto:
    """Return a model of one recurrent layer; `lengths` may be an array or the name of an input."""
    rows = GATES[kind] * hidden
    weights = [
        absent("w", (directions, rows, x[2]), dtype),
        absent("r", (directions, rows, hidden), dtype),
        absent("b", (directions, 2 * rows), dtype),
        absent("p", (directions, 3 * hidden), dtype),
    ]
    inputs = [value("x", x, dtype)]
    if isinstance(lengths, str):
        inputs.append(value(lengths, (3,), TensorProto.INT32))
    elif lengths is not None:
        weights.append(numpy_helper.from_array(np.array(lengths, np.int32), "lengths"))
    names = ["x", "w", "r", "b" if bias else "", "" if lengths is None else "lengths", "", ""]
    names = names[:-1] if kind != "LSTM" else [*names, "p" if peepholes else ""]
    if kind == "GRU":
        attributes.setdefault("linear_before_reset", 1)
    attributes.setdefault("hidden_size", hidden)
    node = helper.make_node(kind, names, ["y", "hy"], "rnn", **attributes)
    return model([node], inputs, weights, dtype=dtype)


def resnet50() -> onnx.ModelProto:
    """Return ResNet-50 v1.5 by its description.

    The batch is symbolic, and the filters have no data.
    """
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []

    def conv(name: str, x: str, channels: int, filters: int, taps: int, stride: int) -> str:
        weights.append(absent(f"{name}.weight", (filters, channels, taps, taps)))
        how = {"strides": [stride] * 2, "pads": [taps // 2] * 4, "kernel_shape": [taps] * 2}
        nodes.append(helper.make_node("Conv", [x, f"{name}.weight"], [name], name, **how))
        weights.extend(
            absent(f"{name}.{part}", (filters,)) for part in ("scale", "shift", "mean", "variance")
        )
        parts = [name, *(f"{name}.{part}" for part in ("scale", "shift", "mean", "variance"))]
        nodes.append(helper.make_node("BatchNormalization", parts, [f"{name}.norm"]))
        return f"{name}.norm"

    def relu(x: str) -> str:
        nodes.append(helper.make_node("Relu", [x], [f"{x}.relu"]))
        return f"{x}.relu"

    x = relu(conv("conv1", "image", 3, 64, 7, 2))
    nodes.append(
        helper.make_node(
            "MaxPool", [x], ["pool"], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4
        )
    )
    x, channels = "pool", 64
    for stage, blocks in enumerate((3, 4, 6, 3), 1):
        width = 32 * 2**stage
        for block in range(blocks):
            name = f"layer{stage}.{block}"
            stride = 2 if block == 0 and stage > 1 else 1
            inner = relu(conv(f"{name}.conv1", x, channels, width, 1, 1))
            inner = relu(conv(f"{name}.conv2", inner, width, width, 3, stride))
            inner = conv(f"{name}.conv3", inner, width, 4 * width, 1, 1)
            if block == 0:
                x = conv(f"{name}.downsample", x, channels, 4 * width, 1, stride)
                channels = 4 * width
            nodes.append(helper.make_node("Add", [inner, x], [f"{name}.sum"]))
            x = relu(f"{name}.sum")
    nodes.append(helper.make_node("GlobalAveragePool", [x], ["features"]))
    nodes.append(helper.make_node("Flatten", ["features"], ["flat"]))
    weights += [absent("fc.weight", (1000, 2048)), absent("fc.bias", (1000,))]
    nodes.append(helper.make_node("Gemm", ["flat", "fc.weight", "fc.bias"], ["scores"], transB=1))
    return model(nodes, {"image": ("batch", 3, 224, 224)}, weights)


def only(problems: ProblemList) -> Any:
    """Return the one problem of a model without anything skipped."""
    assert problems.skipped == []
    ((entry),) = problems
    assert entry.count == 1
    return entry.problem


def why(problems: ProblemList) -> str:
    """Return the reason of a model of which the one node was skipped."""
    assert len(problems) == 0
    (node,) = problems.skipped
    return node.why
