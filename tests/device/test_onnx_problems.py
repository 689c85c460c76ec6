"""Problems from ONNX models, run: what cuDNN computes for them is what ONNX says of the node."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator
from onnx_models import model
from rnn_oracles import GATES, ONNX_GATES
from tolerances import assert_close, bound

import cudnnlite as dnn
from cudnnlite.workbench.tuning.onnx.model_problems import problems_from_onnx

from .problems import FIRST, LAST

BOUND = 1e-12  # of float64


CONVOLUTIONS = [
    ("Conv", (2, 3, 11, 9), (4, 3, 3, 3), {"strides": [2, 1], "pads": [1, 0, 1, 0]}),
    (
        "Conv",
        (1, 4, 10, 10),
        (4, 2, 3, 3),
        {"group": 2, "dilations": [2, 2], "auto_pad": "SAME_UPPER"},
    ),
    (
        "Conv",
        (2, 3, 12, 12),
        (5, 3, 3, 3),
        {"strides": [2, 2], "auto_pad": "SAME_LOWER"},
    ),  # (1, 0): one is not reached
    ("Conv", (2, 3, 12, 12), (5, 3, 7, 7), {"strides": [2, 2], "pads": [3, 3, 2, 2]}),
    ("Conv", (3, 2, 15), (4, 2, 5), {"strides": [3], "pads": [2, 2]}),
    ("Conv", (1, 2, 5, 6, 7), (3, 2, 2, 3, 2), {"strides": [1, 2, 1], "pads": [0, 1, 0, 0, 1, 0]}),
    ("Conv", (2, 6, 7, 7), (6, 1, 3, 3), {"group": 6, "auto_pad": "VALID"}),
    ("ConvTranspose", (2, 4, 5, 6), (4, 3, 3, 3), {"strides": [2, 1], "pads": [1, 0, 1, 0]}),
    (
        "ConvTranspose",
        (2, 4, 5, 6),
        (4, 3, 3, 3),
        {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]},
    ),
    ("ConvTranspose", (2, 4, 5, 6), (4, 3, 4, 3), {"strides": [2, 3], "auto_pad": "SAME_UPPER"}),
    ("ConvTranspose", (2, 4, 5, 6), (4, 3, 3, 4), {"pads": [0, 2, 1, 0]}),
    ("ConvTranspose", (2, 4, 5, 6), (4, 3, 5, 5), {"strides": [2, 2], "pads": [3, 0, 0, 2]}),
    (
        "ConvTranspose",
        (1, 4, 5, 5),
        (4, 2, 3, 3),
        {"strides": [2, 2], "pads": [1, 1, 0, 0]},
    ),  # all that the stride allows
    (
        "ConvTranspose",
        (3, 2, 7),
        (2, 4, 5),
        {"strides": [3], "pads": [2, 2], "dilations": [2], "output_padding": [2]},
    ),
    (
        "ConvTranspose",
        (1, 2, 3, 4, 5),
        (2, 3, 2, 3, 2),
        {"strides": [1, 2, 1], "pads": [0, 1, 0, 0, 1, 0]},
    ),
    ("ConvTranspose", (2, 6, 7, 7), (6, 1, 3, 3), {"group": 6, "auto_pad": "VALID"}),
]


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize(("kind", "x_shape", "w_shape", "attributes"), CONVOLUTIONS, ids=str)
def test_a_convolution_computes_what_the_node_does(
    handle, kind, x_shape, w_shape, attributes, layout
):
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal(x_shape, np.float32), rng.standard_normal(w_shape, np.float32)
    given_model = model(
        [helper.make_node(kind, ["x", "w"], ["y"], "node", **attributes)], {"x": x_shape}, {"w": w}
    )
    (expected,) = ReferenceEvaluator(given_model).run(None, {"x": x})
    (entry,) = problems_from_onnx(given_model, layout=layout)
    problem, weights = entry.problem, handle.array(w, layout=entry.problem.w.layout)
    image, conv = handle.array(x, layout=problem.w.layout), problem.conv.replace(math_type="FMA")
    if kind == "Conv":
        with dnn.convolution_forward.plan(
            handle, problem.x, problem.w, conv, out=problem.y
        ) as plan:
            y = plan(image, weights)
            tolerance = bound("float32", conv.math_type, plan.choice.algorithm, w_shape)
    else:
        y = dnn.convolution_backward_data(
            handle, weights, image, conv, x=problem.dx, interface="graph"
        )
        tolerance = 2e-6
    assert_close(y.numpy(), expected, tolerance)
    assert y.layout == (LAST if layout == "NHWC" else FIRST)[len(x_shape)]


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("direction", ["forward", "bidirectional", "reverse"])
@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("bias", [True, False])
def test_a_recurrent_layer_computes_what_the_node_does(handle, kind, direction, layout, bias):
    cell = {"RNN": "tanh"}.get(kind, kind.lower())
    gates, directions = len(GATES[cell]), 2 if direction == "bidirectional" else 1
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 5, 6) if layout else (5, 3, 6))
    weights = {
        "w": rng.standard_normal((directions, gates * 4, 6)),
        "r": rng.standard_normal((directions, gates * 4, 4)),
        "b": rng.standard_normal((directions, 2 * gates * 4)),
    }
    attributes: dict[str, Any] = {"direction": direction, "layout": layout, "hidden_size": 4}
    if kind == "GRU":
        attributes["linear_before_reset"] = 1
    names = ["x", "w", "r", "b"][: 4 if bias else 3]
    node = helper.make_node(kind, names, ["y", "hy"], "layer", **attributes)
    given_model = model([node], {"x": x.shape}, weights, dtype=11)
    expected, _ = ReferenceEvaluator(given_model).run(None, {"x": x})
    problems = problems_from_onnx(given_model)
    (entry,) = problems
    spec, data = entry.problem.spec, entry.problem.data
    assert len(problems.notes) == (direction == "reverse")

    steps_axis = 1 if layout else 0
    turned = np.flip(x, steps_axis).copy() if direction == "reverse" else x
    device_weights = dnn.RNNWeights.from_arrays(
        handle, spec, named(cell, weights, directions, bias)
    )
    out = dnn.rnn_forward(handle, spec, device_weights, handle.array(turned), layout=data.layout)
    y = np.flip(out.y.numpy(), steps_axis) if direction == "reverse" else out.y.numpy()
    # ONNX keeps the directions apart: (T, D, N, H) and (N, T, D, H)
    expected = expected if layout else expected.swapaxes(1, 2)
    assert data.shape == x.shape
    assert y.shape == (*x.shape[:2], spec.output_size)
    assert_close(y, expected.reshape(y.shape), BOUND)


def named(cell: str, weights: dict[str, Any], directions: int, bias: bool) -> dict[str, Any]:
    """Return ONNX's stacked weights under cudnnlite's names."""
    arrays = {}
    for number, direction in enumerate(("forward", "backward")[:directions]):
        matrices = {"input": weights["w"][number], "recurrent": weights["r"][number]}
        biases = dict(zip(matrices, np.split(weights["b"][number], 2), strict=True))
        for place, matrix in matrices.items():
            for position, gate in enumerate(ONNX_GATES[cell]):
                rows = slice(4 * position, 4 * position + 4)
                arrays[f"layer0.{direction}.{place}.{gate}"] = matrix[rows]
                if bias:
                    arrays[f"layer0.{direction}.{place}.{gate}.bias"] = biases[place][rows]
    return arrays
