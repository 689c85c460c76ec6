"""Tensors of 2^31 values or more: graphs take them.  They are planned here, and not allocated."""

import pytest

import cudnnlite as dnn
from cudnnlite.arguments import MAX_INT
from cudnnlite.graph.data import GraphData

IMAGES = (4096, 64, 128, 128)  # 2^32 values
CONV = dnn.ConvolutionSpec(padding=1)


def filters(dtype="float16", layout="NHWC"):
    return dnn.FilterSpec((64, 64, 3, 3), dtype, layout)


def images(dtype="float16", layout="NHWC"):
    return dnn.TensorSpec(IMAGES, dtype, layout)


def attention_operands():
    """Return q, k and v whose scores are 2^31 values, and stats."""
    q = dnn.TensorSpec((1, 32, 8192, 128), "float16")
    return q, dnn.TensorSpec((1, 32, 8192, 1), "float32")


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"return_stats": True}], ids=str)
def test_scores_of_attention_are_not_in_memory(handle, options):
    q, _ = attention_operands()
    with dnn.scaled_dot_product_attention_forward.plan(handle, q, q, q, **options) as plan:
        assert plan.workspace < q.nbytes


def test_scores_of_attentions_gradients_are_not_in_memory(handle):
    q, stats = attention_operands()
    backward = dnn.scaled_dot_product_attention_backward
    with backward.plan(handle, q, q, q, q, q, stats, causal=True) as plan:
        assert plan.workspace < 8 * q.nbytes


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_an_engine_convolves_large_images(handle, dtype, layout):
    x, w = images(dtype, layout), filters(dtype, layout)
    with dnn.convolution_forward.plan(handle, x, w, CONV) as plan:
        assert isinstance(plan.choice.algorithm, dnn.types.Engine)
        assert plan.descriptors == {}


def test_engines_compute_gradients_of_large_images(handle):
    x, w = images(), filters()
    with dnn.convolution_backward_data.plan(handle, w, x, CONV, x=x) as plan:
        assert isinstance(plan.choice.algorithm, dnn.types.Engine)
    with dnn.convolution_backward_filter.plan(handle, x, x, CONV, w=w) as plan:
        assert isinstance(plan.choice.algorithm, dnn.types.Engine)


def test_a_filter_of_taps_does_not_convert_large_images(handle):
    """Large images have no descriptor, which a conversion to the faster layout needs."""
    x, w = images("float32", "NCHW"), dnn.FilterSpec((64, 1, 9, 9))
    conv = dnn.ConvolutionSpec(padding=4, groups=64)
    with dnn.convolution_forward.plan(handle, x, w, conv) as plan:
        assert isinstance(plan.choice.algorithm, dnn.types.Engine)


def test_matrices_with_large_strides_are_multiplied(handle):
    a, b = dnn.TensorSpec((2**21, 2**11), "float16"), dnn.TensorSpec((2**11, 128), "float16")
    with dnn.matmul.plan(handle, a, b) as plan:
        assert isinstance(plan.choice.algorithm, dnn.types.Engine)


def test_a_graph_with_large_strides_is_saved_and_loaded():
    graph = dnn.Graph()
    a = graph.input("a", (2, 2**16, 2**16), "float16")
    graph.output("y", graph.matmul(a, graph.input("b", (2, 2**16, 8), "float16")), "float16")
    assert GraphData.from_json(graph.to_json()) == graph
    assert graph.inputs["a"].spec.strides == (2**32, 2**16, 1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda h: dnn.convolution_forward.plan(
                h, images(), filters(), CONV, interface="descriptor"
            ),
            "^x=.*4,294,967,296 values of float16.*end at 2,147,483,647; split the batch$",
        ),
        (
            lambda h: dnn.convolution_forward.heuristic(h, images(), filters(), CONV),
            "^x=.*split the batch$",
        ),
        (
            lambda h: dnn.convolution_forward.plan(h, images("int8"), filters("int8"), CONV),
            "^x=.*split the batch; no engine serves: integers stay with the descriptor call$",
        ),
        (
            lambda h: dnn.activation_forward.plan(h, images(), dnn.ActivationSpec("relu")),
            "^x=.*split the batch$",
        ),
        (
            lambda h: dnn.softmax_forward.plan(
                h, dnn.TensorSpec((1, 8, 1, 4), strides=(MAX_INT + 1, 4, 4, 1))
            ),
            "^x=.*stride of 2,147,483,648 on an axis of size 1.*end at 2,147,483,647$",
        ),
    ],
    ids=["interface", "heuristic", "integers", "activation", "stride"],
)
def test_descriptors_end_at_2_31_values(handle, call, message):
    with pytest.raises(dnn.ArgumentError, match=message):
        call(handle)
