"""Operations that run while somebody records: which calls count, and as which problem."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import cudnnlite as dnn
from cudnnlite import convolution_forward, rnn_forward
from cudnnlite.types import Problem
from cudnnlite.workbench.tuning.recording import record_problems

from .test_rnn_plan import Network

SPEC = dnn.ConvolutionSpec(padding=1, stride=2, math_type="FMA")


def counts(problems):
    return {entry.problem: entry.count for entry in problems}


def operands(handle, batch=2, layout=None):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((batch, 3, 8, 9), np.float32)
    w = rng.standard_normal((4, 3, 3, 3), np.float32)
    return handle.array(x, layout=layout), handle.array(w, layout=layout)


def posed(x, w, conv=SPEC, **options):
    return convolution_forward.problem(
        x.spec, dnn.FilterSpec(w.shape, w.spec.dtype, w.layout), conv, **options
    )


# ---------------------------------------------------------------- convolution


def test_what_a_problem_says_can_be_asked_again(handle):
    x, w = operands(handle, layout="NHWC")
    with record_problems() as problem_list:
        y = dnn.convolution_forward(handle, x, w, SPEC)
        problem = problem_list[0].problem
        with dnn.convolution_forward.plan(
            handle, problem.x, problem.w, problem.conv, out=problem.y
        ) as plan:
            again = plan(x, w)
    np.testing.assert_array_equal(again.numpy(), y.numpy())
    assert counts(problem_list) == {problem: 2}


def test_calls_that_were_not_made_do_not_count(handle):
    x, w = operands(handle)
    empty = handle.empty(dnn.TensorSpec((0, 3, 8, 9)))
    with record_problems() as problem_list:
        assert dnn.convolution_forward(handle, empty, w, SPEC).shape == (0, 4, 4, 5)
        with pytest.raises(dnn.ArgumentError):
            dnn.convolution_forward(handle, x, w, SPEC, out=x)
        with pytest.raises(dnn.CudnnError):
            dnn.convolution_forward(
                handle, x, w, SPEC, algorithm="WINOGRAD"
            )  # which has no strides
    assert len(problem_list) == 0


def test_searches_do_not_count(handle):
    x, w = operands(handle)
    network = Network(handle)
    with record_problems() as problem_list:
        dnn.convolution_forward.find(handle, x, w, SPEC)
        dnn.convolution_forward.heuristic(handle, x, w, SPEC)
        table = network.find(algorithms=["STANDARD"])
        assert table.best().time_ms is not None  # it has run
        assert len(problem_list) == 0
        dnn.convolution_forward(handle, x, w, SPEC)  # and what comes after it does
    assert problem_list.total == 1


def test_other_threads_count(device):
    problems = []

    def work(batch):
        with dnn.Handle(device) as handle:
            x, w = operands(handle, batch)
            for _ in range(batch):
                dnn.convolution_forward(handle, x, w, SPEC)
            problems.append(posed(x, w))

    with record_problems() as problem_list:
        threads = [threading.Thread(target=work, args=(batch,)) for batch in (1, 2, 3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert counts(problem_list) == {problem: problem.x.shape[0] for problem in problems}
    assert len(problem_list) == 3


def test_nothing_is_made_while_nobody_records(handle, monkeypatch):
    x, w = operands(handle)
    network = Network(handle)

    def refuse(*_, **__):
        raise AssertionError("made without need")

    # The first calls make plans, which have their problems.
    dnn.convolution_forward(handle, x, w, SPEC)
    dnn.rnn_forward(handle, network.spec, network.weights, network.x)
    monkeypatch.setattr(Problem, "__init__", refuse)
    dnn.convolution_forward(handle, x, w, SPEC)
    dnn.rnn_forward(handle, network.spec, network.weights, network.x)
    with record_problems() as problems:
        dnn.convolution_forward(handle, x, w, SPEC)
    assert len(problems) == 1
    with record_problems(), pytest.raises(AssertionError, match="made without need"):
        dnn.rnn_forward(handle, network.spec, network.weights, network.x)


# ---------------------------------------------------------------- graphs


def test_graphs_count(handle):
    q = handle.array(np.ones((1, 2, 8, 16)), dtype="float16")
    x, w = (
        handle.array(np.ones(shape), dtype="float16", layout="NHWC")
        for shape in ((2, 8, 6, 6), (8, 8, 3, 3))
    )
    with record_problems() as problem_list:
        dnn.scaled_dot_product_attention_forward(handle, q, q, q, causal=True)
        dnn.convolution_forward(handle, x, w, activation="gelu")
        with dnn.convolution_forward.plan(handle, x, w, activation="gelu") as plan:
            plan(x, w)
        dnn.activation_forward(handle, x, "gelu")
        dnn.pooling_forward(handle, x, dnn.PoolingSpec(2))
    attention = dnn.scaled_dot_product_attention_forward.graph(q, q, q, causal=True)
    convolution = dnn.convolution_forward.problem(x, w, activation="gelu")
    *graphs, pooling = [entry.problem for entry in problem_list]
    assert [problem.graph for problem in graphs[:2]] == [attention, convolution.graph]
    assert "graph of GELU_FWD" in str(graphs[2])
    assert pooling == dnn.pooling_forward.problem(x, dnn.PoolingSpec(2))
    assert [entry.count for entry in problem_list] == [1, 2, 1, 1]


def test_sums_over_an_empty_batch_do_not_count(handle):
    """They are zeros, which no C function computes."""
    x, dy = (handle.empty(dnn.TensorSpec((0, 3, 8, 8))) for _ in range(2))
    with record_problems() as problem_list:
        dw = dnn.convolution_backward_filter(handle, x, dy, dnn.ConvolutionSpec(1), w=(3, 3, 3, 3))
    np.testing.assert_array_equal(dw.numpy(), 0)
    assert len(problem_list) == 0


# ---------------------------------------------------------------- recurrent networks


def test_every_forward_call_of_a_network_counts(handle):
    network = Network(handle)
    spec, weights, x = network.spec, network.weights, network.x
    with (
        dnn.rnn_forward.plan(handle, spec, None, x, lengths=(5, 5, 3, 1)) as plan,
        record_problems() as problem_list,
    ):
        with dnn.rnn_forward.plan(handle, spec, None, x):  # made, but not called
            assert len(problem_list) == 0
        dnn.rnn_forward(handle, spec, weights, x)
        dnn.rnn_forward(handle, spec, weights, x, algorithm="STANDARD")
        plan(weights, x)
        plan(weights, x, lengths=(5, 5, 3, 1))
        plan(weights, x, lengths=(5, 4, 3, 1))
        plan(weights, x, lengths=[5, 4, 3, 1])
        trained = dnn.rnn_forward(handle, spec, weights, x, training=True)
        dnn.rnn_backward_data(
            handle, trained.reserve, trained.y
        )  # of which there is no kind of problem
        dnn.rnn_backward_weights(handle, trained.reserve)
        with pytest.raises(dnn.ArgumentError):
            plan(weights, x, lengths=(5, 6, 1, 1))
    full = dnn.specs.RNNDataSpec(x.shape, None, x.spec.dtype)
    assert counts(problem_list) == {
        rnn_forward.problem(spec, None, full): 3,
        rnn_forward.problem(
            spec, None, dnn.specs.RNNDataSpec(x.shape, (5, 5, 3, 1), x.spec.dtype)
        ): 1,
        rnn_forward.problem(
            spec, None, dnn.specs.RNNDataSpec(x.shape, (5, 4, 3, 1), x.spec.dtype)
        ): 2,
        rnn_forward.problem(spec, None, full, training=True): 1,
    }


def test_a_network_that_the_first_guess_does_not_do_counts_once(handle, monkeypatch):
    network = Network(handle, hidden_size=8)
    calls = []

    def guess(spec, data, *, full):
        calls.append(spec)
        return dnn.AlgorithmResult(dnn.enums.RNNAlgo.PERSIST_STATIC, spec.math_type)

    monkeypatch.setattr("cudnnlite.operations.rnn.request.heuristic", guess)
    spec, x = network.spec, network.x
    with record_problems() as problem_list:
        # PERSIST_STATIC does not do unequal lengths: it is refused, and STANDARD runs
        dnn.rnn_forward(handle, spec, network.weights, x, lengths=(5, 5, 3, 1))
    assert len(calls) == 1
    assert counts(problem_list) == {
        rnn_forward.problem(
            spec, None, dnn.specs.RNNDataSpec(x.shape, (5, 5, 3, 1), x.spec.dtype)
        ): 1
    }
