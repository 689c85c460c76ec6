"""An ONNX model of many nodes is read in time in proportion, or refused."""

from __future__ import annotations

import onnx
import pytest
from helpers.growth import growth

import cudnnlite as dnn


def nested(depth):
    """A model whose functions call each other twice: of 2 ** depth nodes."""
    helper, opset = (
        onnx.helper,
        [onnx.helper.make_opsetid("", 21), onnx.helper.make_opsetid("m", 1)],
    )
    functions = [
        helper.make_function(
            "m", "f0", ["x"], ["y"], [helper.make_node("Relu", ["x"], ["y"])], opset
        )
    ]
    for level in range(1, depth + 1):
        nodes = [helper.make_node(f"f{level - 1}", [a], [b], domain="m") for a, b in ("xt", "ty")]
        functions.append(helper.make_function("m", f"f{level}", ["x"], ["y"], nodes, opset))
    ends = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 2, 4, 4])
        for name in "xy"
    ]
    graph = helper.make_graph(
        [helper.make_node(f"f{depth}", ["x"], ["y"], domain="m")], "g", ends[:1], ends[1:]
    )
    return helper.make_model(graph, functions=functions, opset_imports=opset)


def test_functions_that_double_with_each_are_bounded():
    assert len(dnn.problems_from_onnx(nested(4))) == 0
    for depth in (17, 22, 60):
        with pytest.raises(dnn.ArgumentError, match="more than 65536 nodes, its functions inlined"):
            dnn.problems_from_onnx(nested(depth))


def many_convolutions(number):
    helper = onnx.helper
    nodes = [helper.make_node("Conv", ["x", f"w{count}"], [f"y{count}"]) for count in range(number)]
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 2, 4, 4])
    kinds = {"data_type": onnx.TensorProto.FLOAT, "data_location": onnx.TensorProto.EXTERNAL}
    weights = [
        onnx.TensorProto(name=f"w{count}", dims=[1 + count, 2, 3, 3], **kinds)
        for count in range(number)
    ]
    return helper.make_model(helper.make_graph(nodes, "g", [x], [], weights))


def test_many_problems_take_time_in_proportion():
    def read(model):
        assert len(dnn.problems_from_onnx(model)) == len(model.graph.node)

    few, many = many_convolutions(500), many_convolutions(4000)
    assert growth(read, few, many) < 20  # 8 in proportion, 64 in the square


def test_a_function_that_calls_itself_is_refused():
    model = nested(2)
    model.functions[0].node[0].op_type, model.functions[0].node[0].domain = "f2", "m"
    with pytest.raises(dnn.ArgumentError):
        dnn.problems_from_onnx(model)
