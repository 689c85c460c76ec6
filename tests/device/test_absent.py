"""A GPU's properties stand for the GPU: without it, cuDNN names the engines in the same order."""

import shutil
from contextlib import ExitStack
from typing import Any

import pytest

import cudnnlite as dnn
from cudnnlite.graph.engines import configurations
from cudnnlite.graph.lowering import lower
from cudnnlite.graph.selection import HEURISTICS_OF_PLANS
from cudnnlite.workbench.absent.asking import subject_of

# cuDNN asks the GPU nothing about these.
SAME_LISTS = ("convolution", "attention", "gradients of attention", "layer normalization")
# With the GPU, cuDNN 9.28 names other configurations of these, and more engines.
OTHER_KNOBS = ("product",)


def test_properties_of_a_handle_are_json_of_cudnn(handle: dnn.Handle) -> None:
    found = dnn.types.DeviceProperties.of(handle)
    assert dnn.types.DeviceProperties.from_json(found.to_json()) == found
    assert found.multiprocessors > 0
    with dnn.types.BackendDescriptor(
        handle, "DEVICEPROP", json_representation=found.to_json()
    ) as descriptor:
        read = descriptor.finalize().get("json_representation")
    assert dnn.types.DeviceProperties.from_json(read) == found


def problems() -> dict[str, Any]:
    x = dnn.TensorSpec((8, 64, 28, 26), "float16", "NHWC")
    w = dnn.FilterSpec((128, 64, 3, 3), "float16", "NHWC")
    pixels = dnn.FilterSpec((128, 64, 1, 1), "float16", "NHWC")
    conv = dnn.ConvolutionSpec(padding=1)
    y = dnn.convolution_forward.problem(x, w, conv).y
    q = dnn.TensorSpec((2, 4, 256, 64), "float16")
    stats = dnn.TensorSpec((2, 4, 256, 1))
    rows, scale = dnn.TensorSpec((512, 768, 1, 1), "float16"), dnn.TensorSpec((1, 768, 1, 1))
    product = dnn.Graph()
    a = product.input("a", (1, 96, 256), "float16")
    b = product.input("b", (1, 256, 512), "float16")
    product.output("y", product.gelu(product.matmul(a, b)), "float16")
    attention = dnn.scaled_dot_product_attention_forward.graph
    gradients = dnn.scaled_dot_product_attention_backward.graph
    return {
        "convolution": dnn.convolution_forward.problem(x, w, conv),
        "convolution of pixels": dnn.convolution_forward.problem(x, pixels, dnn.ConvolutionSpec()),
        "gradient of x": dnn.convolution_backward_data.problem(w, y, conv, x=x),
        "gradient of w": dnn.convolution_backward_filter.problem(x, y, conv, w=w),
        "product": product,
        "attention": attention(q, q, q, causal=True),
        "gradients of attention": gradients(q, q, q, q, q, stats, causal=True),
        "layer normalization": dnn.layer_normalization_forward.graph(rows, scale, scale),
    }


@pytest.mark.gpu
@pytest.mark.processes
@pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="there is no C compiler"
)
@pytest.mark.parametrize("device", ["cuda"], indirect=True)
def test_engines_without_the_gpu_are_those_with_it(handle: dnn.Handle) -> None:
    """With the GPU the same engines are named in the same order; others may come between them.

    Those count the GPU's clusters, or ask cuBLASLt.  Of products the numbers alone are compared.
    """
    named = problems()
    answers = dnn.candidates([*named.values()], handle)
    for (name, problem), answer in zip(named.items(), answers, strict=True):
        with ExitStack() as stack:
            graph = lower(subject_of(problem).graph, handle, stack)
            engines = [found.engine for found in configurations(graph, HEURISTICS_OF_PLANS, stack)]
        known = [row.engine for row in answer]
        assert answer.served, name
        if name in OTHER_KNOBS:
            assert {engine.index for engine in known} <= {engine.index for engine in engines}
            continue
        assert [engine for engine in engines if engine in known] == known, name
        if name in SAME_LISTS:
            assert engines == known, name
