"""Strides that cuDNN computes wrongly with are refused by the tensor's name, before it is asked.

The rows are random calls on an H200 with cuDNN 9.19 (2026-11-29), by `tests/fuzz/random_calls.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from device.problems import poisoned
from helpers.faults import why_engine_is_wrong, why_wrong

import cudnnlite as dnn

UNPACKED_RESULTS = [
    ((2, 32, 1), (864, 3, 96)),
    ((1, 16, 16), (1728, 3, 72)),
    ((1, 16, 40), (1440, 80, 2)),
    ((8, 2), (6, 3)),
    ((1, 3, 8, 40), (960, 1, 120, 3)),
]
# The result of one column of the last row was right on the H200, the first two rows are usual.
PACKED_RESULTS = [
    ((2, 8, 24), (288, 36, 1)),
    ((2, 8, 24), (240, 1, 10)),
    ((3, 8, 1), (72, 9, 1)),
    ((2, 2, 1), (20, 2, 2)),
]


def operands_of(shape: tuple[int, ...], handle: dnn.Handle) -> list[dnn.DeviceArray]:
    """Return two operands whose product has a shape."""
    rng = np.random.default_rng(1)
    shapes = ((*shape[:-1], 8), (*shape[:-2], 8, shape[-1]))
    return [handle.array(rng.integers(-2, 3, each).astype(np.float32)) for each in shapes]


@pytest.mark.parametrize(("shape", "strides"), UNPACKED_RESULTS)
def test_a_result_of_a_product_without_packed_rows_is_refused(shape, strides, own_handle):
    a, b = operands_of(shape, own_handle)
    out = poisoned(own_handle, dnn.TensorSpec(shape, "float32", strides=strides))
    with pytest.raises(dnn.ArgumentError, match=r"columns of y beside a product .* packed array$"):
        dnn.matmul(own_handle, a, b, out=out)
    assert np.isnan(out.numpy()).all()
    dy = dnn.TensorSpec((*shape[:-1], 8), "float32")
    other = dnn.TensorSpec((*shape[:-2], shape[-1], 8), "float32")
    with pytest.raises(dnn.ArgumentError, match=r"columns of da beside a product"):
        dnn.matmul_backward_a.plan(own_handle, dy, other, out=out.spec)


@pytest.mark.parametrize(("shape", "strides"), PACKED_RESULTS)
def test_a_result_of_packed_rows_or_columns_is_written(shape, strides, own_handle):
    a, b = operands_of(shape, own_handle)
    out = poisoned(own_handle, dnn.TensorSpec(shape, "float32", strides=strides))
    dnn.matmul(own_handle, a, b, out=out)
    np.testing.assert_array_equal(out.numpy(), a.numpy() @ b.numpy())


@pytest.mark.parametrize(
    ("shape", "strides"),
    [
        ((1, 1, 8), (72, 1, 9)),
        ((1, 1, 16), (32, 2, 2)),
        ((1, 1, 16), (96, 3, 6)),
        ((1, 16, 1), (48, 3, 1)),
        ((1, 16, 1), (48, 3, 3)),
        ((1, 3, 8), (80, 20, 2)),
        ((3, 8, 8), (192, 24, 3)),
    ],
)
def test_an_operand_behind_a_product_without_packed_rows_is_refused(shape, strides, own_handle):
    batch, rows, columns = shape
    graph = dnn.Graph()
    a = graph.input("a", (batch, max(rows, 3), 16), "bfloat16")
    b = graph.input("b", (batch, 16, columns), "bfloat16")
    operand = graph.input("operand", shape, "bfloat16", strides)
    graph.output("y", graph.matmul(a, b) - operand, "bfloat16")
    with pytest.raises(dnn.ArgumentError, match=r"columns of operand .*; its strides are \("):
        graph.plan(own_handle)


def test_an_operand_with_gaps_between_rows_is_served(own_handle):
    rng = np.random.default_rng(2)
    a, b = operands_of((2, 8, 24), own_handle)
    whole = own_handle.array(rng.integers(-2, 3, (2, 8, 32)).astype(np.float32))
    bias = whole[:, :, :24]
    y = dnn.matmul(own_handle, a, b, bias=bias)
    np.testing.assert_array_equal(y.numpy(), a.numpy() @ b.numpy() + bias.numpy())


# ------------------------------------------------------------------- gradients of attention


def gradients(k: dnn.TensorSpec, **options: bool) -> dnn.Graph:
    q, bias = dnn.TensorSpec((2, 2, 9, 16), "float16"), dnn.TensorSpec((2, 1, 9, 8), "float16")
    stats = dnn.TensorSpec((2, 2, 9, 1), "float32")
    v = dnn.TensorSpec(k.shape, "float16")
    return dnn.scaled_dot_product_attention_backward.graph(
        q, k, v, q, q, stats, bias=bias, **options
    )


@pytest.mark.parametrize("strides", [(384, 192, 24, 1), (256, 16, 32, 1)])
def test_the_steps_of_k_are_neighbours_beside_the_gradient_of_a_bias(strides, own_handle):
    k = dnn.TensorSpec((2, 2, 8, 16), "float16", strides=strides)
    with pytest.raises(dnn.ArgumentError, match=r"steps of k are no neighbours .*, needed: 16;"):
        gradients(k, return_dbias=True).plan(own_handle)
    assert why_wrong(gradients(k)) is None
    packed = dnn.TensorSpec(k.shape, "float16")
    assert why_wrong(gradients(packed, return_dbias=True)) is None


@pytest.mark.parametrize(
    ("strides", "is_right"),
    [((64, 16, 16, 1), False), ((64, 16, 64, 1), False), ((32, 8, 8, 1), True), ((32, 8, 32, 1), True)],
)  # fmt: skip
def test_the_heads_of_one_step_are_neighbours_beside_the_gradient_of_a_bias(strides, is_right):
    k = dnn.TensorSpec((1, 4, 1, 8), "bfloat16", strides=strides)
    q, stats = dnn.TensorSpec((1, 4, 16, 8), "bfloat16"), dnn.TensorSpec((1, 4, 16, 1), "float32")
    bias = dnn.TensorSpec((1, 4, 16, 1), "bfloat16")
    for return_dbias in (True, False):
        graph = dnn.scaled_dot_product_attention_backward.graph(
            q, k, k, q, q, stats, bias=bias, return_dbias=return_dbias
        )
        fault = why_wrong(graph)
        assert fault is None if is_right or not return_dbias else "no neighbours" in fault


# ------------------------------------------------------------------- convolutions


def behind_convolution(
    modes: list[str], x: str | tuple[int, ...], w: str, y: str, *, bias: bool = False
) -> dnn.Graph:
    """Return a graph with operations behind a convolution, in these layouts or strides."""
    graph = dnn.Graph()

    def spec(shape: tuple[int, ...], layout: Any) -> dnn.TensorSpec:
        if isinstance(layout, str):
            return dnn.TensorSpec(shape, "float32", layout)
        return dnn.TensorSpec(shape, "float32", strides=layout)

    for_x, for_w = spec((1, 8, 6, 5), x), spec((16, 8, 3, 3), w)
    result: Any = graph.convolution_forward(
        graph.input("x", for_x.shape, "float32", for_x.strides),
        graph.input("w", for_w.shape, "float32", for_w.strides),
    )
    if bias:
        result = result + graph.input("bias", (1, 16, 1, 1), "float32")
    for mode in modes:
        result = graph.pointwise(mode, result)
    graph.output("y", result, "float32", spec((1, 16, 4, 3), y).strides)
    return graph


GAPS = (480, 2, 80, 16)


@pytest.mark.parametrize(
    ("layouts", "name"),
    [
        (("NHWC", "NCHW", "NHWC"), "w"),
        (("NCHW", "NHWC", "NHWC"), "x"),
        (("NCHW", "NCHW", "NHWC"), "w"),
        ((GAPS, "NHWC", "NHWC"), "x"),
    ],
)
def test_what_is_not_packed_with_channels_last_is_read_so(layouts, name):
    graph = behind_convolution(["GELU_FWD"], *layouts)
    reason = why_engine_is_wrong(7, graph, 91900)
    assert reason is not None
    assert reason.startswith(f"it reads {name} as packed")
    assert "layout='NHWC' to all" in reason
    assert why_engine_is_wrong(0, graph, 91900) is None  # it has activations built in
    for served in (["RELU_FWD"], []):  # a bias with it, or alone, has other kernels
        behind_bias = behind_convolution(served, *layouts, bias=True)
        assert why_engine_is_wrong(7, behind_bias, 91900) is None


def test_one_layout_of_all_is_right_with_channels_last():
    chain = ["GELU_FWD"]
    assert why_engine_is_wrong(7, behind_convolution(chain, *["NHWC"] * 3), 91900) is None
    assert why_engine_is_wrong(7, behind_convolution(chain, *["NCHW"] * 3), 91900) is not None


def test_a_chain_alone_with_gaps_is_refused_by_name():
    """An H200 with cuDNN 9.28 read the gaps as values."""
    graph = dnn.Graph()
    x = graph.input("x", (1, 2, 8, 1), "bfloat16", (32, 1, 4, 2))
    graph.output("y", x + 2.0, "bfloat16", layout="NHWC")
    assert (why_wrong(graph) or "").startswith("cuDNN reads gaps of x as values")


@pytest.mark.parametrize("name", ["x", "y"])
@pytest.mark.parametrize("strides", [(1, 120, 6, 2), (40, 1, 2, 8), (40, 20, 5, 1)])
def test_a_chain_alone_in_another_order_of_axes_is_refused_by_name(strides, name):
    """An H200 read such images as packed with channels last, and lost the context over some."""
    shape = (2, 3, 20, 3) if strides[0] == 1 else (3, 2, 4, 5)
    packed = dnn.TensorSpec(shape, "float16", "NHWC").strides
    graph = dnn.Graph()
    x = graph.input("x", shape, "float16", strides if name == "x" else packed)
    graph.output("y", graph.relu(x), "float16", strides if name == "y" else packed)
    reason = why_wrong(graph) or ""
    assert reason.startswith(f"cuDNN reads {name} as packed with channels last")
    assert "layout='NHWC'" in reason


def test_axes_of_rank_3_in_another_order_are_refused_by_name_in_a_chain_alone():
    """44 of 125 such calls were wrong on an H200 with cuDNN 9.28."""
    for strides, is_right in (((1, 16, 4), False), ((15, 1, 3), False), ((15, 5, 1), True)):
        graph = dnn.Graph()
        shape = (4, 5, 4) if strides[0] == 1 else (4, 3, 5)
        x = graph.input("x", shape, "float32", strides)
        graph.output("y", graph.abs(x), "float32")
        reason = why_wrong(graph)
        assert (reason is None) == is_right, strides
        assert is_right or str(reason).startswith("cuDNN reads the axes of x in order")


@pytest.mark.parametrize("rank", [6, 7])
def test_other_ranks_of_a_chain_alone_are_left_to_cudnn(rank):
    graph = dnn.Graph()
    graph.output("y", graph.relu(graph.input("x", tuple(range(2, 2 + rank)), "float32")), "float32")
    assert why_wrong(graph) is None


@pytest.mark.parametrize("chain", ["nothing, another type", "a number"])
def test_a_convolution_with_gaps_and_no_kernel_of_its_own_is_wrong(chain):
    """An H200 read x as packed: a bfloat16 result (9.28), the addition of a number (9.19)."""
    for strides, is_right in (((1728, 108, 12, 1), False), ((288, 1, 32, 8), True)):
        graph = dnn.Graph()
        x = graph.input("x", (2, 8, 9, 4), "float32", strides)
        w = graph.input("w", (8, 8, 4, 2), "float32", layout="NHWC")
        y = graph.convolution_forward(x, w, dnn.ConvolutionSpec((2, 0)))
        y, dtype = (y, "bfloat16") if chain.startswith("nothing") else (y + 0.5, "float32")
        graph.output("y", y, dtype, layout="NHWC")
        reason = why_engine_is_wrong(7, graph, 91900)
        assert (reason is None) == is_right
        assert is_right or str(reason).startswith("it reads x as packed with channels last")


@pytest.mark.parametrize("chain", ["sum", "tanh"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("shape", [(1, 16, 1, 1), (2, 1, 3, 4), (2, 16, 3, 4), (1, 1, 1, 1)])
def test_an_operand_with_gaps_behind_a_convolution_is_refused(shape, dtype, chain):
    """Every engine of an H200 read the gaps; a single value has none."""
    for step in (1, 3):
        graph = dnn.Graph()
        x = graph.input("x", (2, 8, 3, 4), "float32", layout="NHWC")
        w = graph.input("w", (16, 8, 3, 3), "float32", layout="NHWC")
        packed = dnn.TensorSpec(shape, dtype, "NHWC").strides
        operand = graph.input("operand", shape, dtype, tuple(step * stride for stride in packed))
        y = graph.convolution_forward(x, w, dnn.ConvolutionSpec(padding=1)) + operand
        graph.output("y", graph.tanh(y) if chain == "tanh" else y, "float32", layout="NHWC")
        is_wrong = step > 1 and shape != (1, 1, 1, 1)
        assert ("reads gaps of operand" in str(why_wrong(graph))) == is_wrong


def test_a_bias_with_gaps_is_refused(own_handle):
    x, w = (own_handle.zeros(shape) for shape in ((2, 8, 5, 5), (16, 8, 3, 3)))
    bias = own_handle.zeros(dnn.TensorSpec((1, 16, 1, 1), strides=(32, 2, 2, 2)))
    conv = dnn.ConvolutionSpec()
    with pytest.raises(
        dnn.ArgumentError, match=r"bias has strides \(32, 2, 2, 2\); needed: a packed"
    ):
        dnn.convolution_bias_activation_forward(own_handle, x, w, bias, conv)
    with pytest.raises(dnn.ArgumentError, match=r"bias has strides"):
        dnn.convolution_forward(own_handle, x, w, conv, bias=bias)


@pytest.mark.parametrize(
    ("result", "bias", "is_wrong"),
    [
        ((3, 3, 1, 1), (3, 3, 1, 1), True),
        ((3, 1, 1), (3, 1, 1), True),
        ((3, 2, 1), (3, 2, 1), True),
        ((3, 2, 1), (1, 2, 1), False),
        ((3, 2, 4), (1, 1, 4), False),
    ],
)
def test_the_built_in_engine_adds_one_bias_to_all_matrices(result, bias, is_wrong):
    """An H200 with cuDNN 9.19 added that of the first; engine 7 was right."""
    graph = dnn.Graph()
    *batch, rows, columns = result
    a, b = graph.input("a", (*batch, rows, 40)), graph.input("b", (*batch, 40, columns))
    graph.output("y", graph.matmul(a, b) + graph.input("bias", bias))
    assert why_wrong(graph) is None
    assert ("of the first matrix" in str(why_engine_is_wrong(0, graph))) == is_wrong
    assert why_engine_is_wrong(7, graph) is None


def test_other_strides_behind_a_normalisation_are_refused_by_name():
    """Layer normalisation, a subtraction and more ended the CUDA context of an H200."""
    for strides, is_right in (((32, 1, 32, 32), False), ((32, 1, 1, 1), True)):
        graph = dnn.Graph()
        x = graph.input("x", (4, 32, 1, 1), "float32")
        scale, bias = (graph.input(n, (1, 32, 1, 1), "float32") for n in ("scale", "bias"))
        b = graph.input("b", (4, 32, 1, 1), "float32", strides)
        y = graph.normalization_forward("LAYER", x, scale, bias).y
        graph.output("y", y - b, "float32")
        assert (why_wrong(graph) is None) == is_right


# ------------------------------------------------------------------- gradients in a chain


@pytest.mark.parametrize("mode", ["RELU_BWD", "GELU_BWD", "TANH_BWD"])
def test_a_gradient_behind_a_normalisation_is_refused(mode, own_handle):
    graph = dnn.Graph()
    x, dy = (graph.input(name, (2, 24, 1, 1), "float16") for name in ("x", "dy"))
    scale = graph.input("scale", (1, 24, 1, 1), "float32")
    y = graph.normalization_forward("RMS", x, scale).y
    graph.output("dx", graph.pointwise(mode, y, dy), "float16")
    with pytest.raises(dnn.ArgumentError, match=f"{mode} behind a normalisation"):
        graph.plan(own_handle)


@pytest.mark.parametrize("modes", [["TANH_BWD"], ["ADD", "SIGMOID_BWD"]], ids=str)
def test_a_gradient_behind_a_convolution_is_refused_as_graphs_are(modes, own_handle):
    graph = dnn.Graph()
    x = graph.input("x", (2, 8, 5, 5), "float16", layout="NHWC")
    w = graph.input("w", (16, 8, 3, 3), "float16", layout="NHWC")
    dy = graph.input("dy", (2, 16, 3, 3), "float16", layout="NHWC")
    y = graph.convolution_forward(x, w)
    for mode in modes:
        y = graph.pointwise(mode, y, dy)
    graph.output("y", y, "float16", layout="NHWC")
    if own_handle.device.kind == "emulated":
        with pytest.raises(dnn.NotSupportedError, match=f"CONVOLUTION_FORWARD, {', '.join(modes)}"):
            graph.plan(own_handle)


def test_gaps_behind_a_convolution_with_a_prologue_are_seen():
    graph = dnn.Graph()
    x = graph.input("x", (2, 8, 3, 4), "float32", layout="NHWC")
    w = graph.input("w", (16, 8, 3, 3), "float32", layout="NHWC")
    bias = graph.input("bias", (1, 16, 1, 1), "float32", (32, 2, 2, 2))
    y = graph.convolution_forward(graph.relu(x), w, dnn.ConvolutionSpec(padding=1))
    graph.output("y", y + bias, "float32", layout="NHWC")
    assert "reads gaps of bias" in str(why_wrong(graph))


def test_a_projection_behind_attention_is_no_gradient():
    graph = dnn.Graph()
    q, v = (graph.input(name, (1, 2, 16, 32), "float16") for name in "qv")
    k = graph.input("k", (1, 2, 32, 16), "float16", (1024, 512, 1, 32))
    w = graph.input("w", (1, 2, 32, 32), "float16")
    p, _ = graph.softmax_with_stats(graph.matmul(q, k), "float16")
    o = graph.identity(graph.matmul(p, v), "float16")
    graph.output("y", graph.matmul(o, w), "float16")
    assert "subtraction" not in str(why_wrong(graph))
