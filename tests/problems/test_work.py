"""What a problem has to do: counted by hand."""

import pytest

import cudnnlite as dnn
from cudnnlite.enums import DataType
from cudnnlite.errors import ArgumentError
from cudnnlite.graph.problem import GraphProblem
from cudnnlite.operations.attention.attention_graphs import backward_graph
from cudnnlite.problems.rnn import FORWARD as RNN_FORWARD
from cudnnlite.problems.work import work_of
from cudnnlite.types import Problem
from cudnnlite.workbench.bench.lists import (
    LISTS,
    attention_problem,
    matmul_problem,
    problems_of_list,
)


def strided_grouped():
    x = dnn.TensorSpec((2, 6, 9, 7), "float16")
    w = dnn.FilterSpec((8, 3, 3, 2), "float16")
    return x, w, dnn.ConvolutionSpec(stride=(2, 3), groups=2)


def test_a_grouped_strided_convolution():
    x, w, conv = strided_grouped()
    # y is 2 x 8 x 4 x 2: (9 - 3) // 2 + 1 = 4 and (7 - 2) // 3 + 1 = 2.  Each value sums 3 * 3 * 2
    # products of its group.
    work = work_of(dnn.convolution_forward.problem(x, w, conv))
    assert work.flops == 2 * (2 * 8 * 4 * 2) * (3 * 3 * 2)
    assert work.nbytes == 2 * (2 * 6 * 9 * 7 + 8 * 3 * 3 * 2 + 2 * 8 * 4 * 2)
    assert work.dtype == DataType.HALF


def test_gradients_have_as_many_products():
    x, w, conv = strided_grouped()
    forward = dnn.convolution_forward.problem(x, w, conv)
    data = dnn.convolution_backward_data.problem(w, forward.y, conv, x=x)
    filters = dnn.convolution_backward_filter.problem(x, forward.y, conv, w=w)
    assert {work_of(problem) for problem in (forward, data, filters)} == {work_of(forward)}


def test_an_output_that_is_blended_is_read_too():
    x, w, conv = strided_grouped()
    problem = dnn.convolution_forward.problem(x, w, conv)
    blended = problem.replace(beta=1.0)
    assert work_of(blended).nbytes - work_of(problem).nbytes == 2 * (2 * 8 * 4 * 2)


def test_a_product_of_matrices():
    work = work_of(matmul_problem(3, 5, 7, 11, "bfloat16", bias=True, activation="gelu"))
    assert work.flops == 2 * 3 * 5 * 7 * 11
    assert work.nbytes == 2 * 3 * (5 * 11 + 11 * 7 + 5 * 7) + 2 * 7


def test_attention_has_two_products():
    work = work_of(attention_problem(2, 6, 8, 16, "float16", kv_heads=3, kv_steps=24))
    assert work.flops == 2 * (2 * 2 * 6 * 8 * 24 * 16)
    assert work.nbytes == 2 * (2 * (2 * 6 * 8 * 16) + 2 * (2 * 3 * 24 * 16))


@pytest.mark.parametrize(("steps", "kv_steps"), [(8, 8), (8, 24), (24, 8)])
def test_a_causal_mask_hides_scores(steps, kv_steps):
    whole = attention_problem(2, 3, steps, 16, "float16", kv_steps=kv_steps)
    causal = attention_problem(2, 3, steps, 16, "float16", kv_steps=kv_steps, causal=True)
    seen = sum(column <= row for row in range(steps) for column in range(kv_steps))
    assert work_of(causal).flops * steps * kv_steps == work_of(whole).flops * seen
    assert work_of(causal).nbytes == work_of(whole).nbytes


@pytest.mark.parametrize("causal", [False, True])
def test_attention_backward_has_five_products(causal):
    operand = dnn.TensorSpec((2, 3, 8, 16), "float16")
    specs = dict.fromkeys(("q", "k", "v", "o", "do"), operand)
    specs["stats"] = dnn.TensorSpec((2, 3, 8, 1), "float32")
    problem = GraphProblem(backward_graph(specs, None, causal, None, 0.0))
    scores = 8 * 9 // 2 if causal else 8 * 8
    assert work_of(problem).flops == 5 * 2 * (2 * 3 * scores * 16)


def test_a_graph_with_a_convolution():
    graph = dnn.Graph()
    x = graph.input("x", (2, 8, 9, 7), "float16")
    w = graph.input("w", (4, 8, 3, 3), "float16")
    y = graph.convolution_forward(x, w)
    graph.output("y", graph.relu(y), "float16")
    assert work_of(GraphProblem(graph)).flops == 2 * (2 * 4 * 7 * 5) * (8 * 3 * 3)


def test_an_lstm():
    spec = dnn.RNNSpec("lstm", 5, 7, num_layers=2, dtype="float32")
    data = dnn.specs.RNNDataSpec((11, 3, 5), dtype="float32")
    work = work_of(Problem(RNN_FORWARD, spec=spec, data=data, training=False))
    matrices = 4 * 7 * (5 + 7) + 4 * 7 * (7 + 7)
    assert work.flops == 2 * 11 * 3 * matrices
    biases, states = 2 * 2 * 4 * 7, 2 * (2 * 3 * 7)
    assert work.nbytes == 4 * (matrices + biases + 11 * 3 * (5 + 7) + states)


def test_the_lists_have_what_their_sources_say():
    resnet = problems_of_list("resnet50", 1)
    assert resnet.total == 53
    # 4.09 G multiplications and additions an image, as torchvision states for ResNet-50, 2.05 M of
    # them in the layer that is no convolution.
    total = sum(item.count * work_of(item.problem).flops for item in resnet)
    assert total / 2 == pytest.approx(4.09e9, rel=0.01)
    assert problems_of_list("deepbench-convolutions").total == 94
    assert problems_of_list("deepbench-rnn").total == 53


@pytest.mark.parametrize("name", LISTS)
def test_a_list_has_the_data_type_that_is_asked_for(name):
    problems = problems_of_list(name, dtype="bfloat16")
    assert {work_of(item.problem).dtype for item in problems} == {DataType.BFLOAT16}
    assert all(item.names for item in problems)


def test_what_is_no_list_is_refused():
    with pytest.raises(ArgumentError, match="list='alexnet'; allowed: resnet50"):
        problems_of_list("alexnet")
    with pytest.raises(ArgumentError, match="have batches of their own"):
        problems_of_list("deepbench-rnn", batch=4)
