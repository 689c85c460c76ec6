"""What the logger `cudnnlite` is told."""

import logging

import numpy as np
import pytest

import cudnnlite as dnn
from cudnnlite._raw import library
from cudnnlite.sizes import format_size
from cudnnlite.workbench.tuning import tuner as tuner_module


def operands(handle):
    return handle.zeros((1, 3, 6, 6)), handle.zeros((4, 3, 3, 3))


def test_the_library_that_was_found(caplog):
    with caplog.at_level(logging.INFO, "cudnnlite"):
        loaded = library._load()
    assert caplog.messages == [
        f"libcudnn {loaded.version_text} at {loaded.path}, found through {loaded.how}"
    ]


def test_the_algorithm_of_each_plan(own_handle, caplog):
    x, w = operands(own_handle)
    lstm = dnn.RNNSpec("lstm", 3, 4)
    with caplog.at_level(logging.DEBUG, "cudnnlite"):
        for _ in range(2):
            dnn.convolution_forward(own_handle, x, w, algorithm="GEMM")
        dnn.rnn_forward(
            own_handle, lstm, dnn.RNNWeights(own_handle, lstm), own_handle.zeros((2, 1, 3))
        )
    first, second = caplog.messages
    assert first.startswith("plan of convolution forward of ")
    assert "GEMM" in first
    with dnn.convolution_forward.plan(own_handle, x, w, algorithm="GEMM") as plan:
        assert first.endswith(f": {plan.choice}")
        assert f"workspace {format_size(plan.workspace)}" in first
    assert "STANDARD" in second or "PERSIST" in second
    assert {record.levelno for record in caplog.records} == {logging.DEBUG}


def test_a_plan_without_a_choice(own_handle, caplog):
    with caplog.at_level(logging.DEBUG, "cudnnlite"):
        dnn.pooling_forward(own_handle, own_handle.zeros((1, 3, 6, 6)), dnn.PoolingSpec(2))
    (message,) = caplog.messages
    assert message.startswith("plan of pooling forward of ")
    assert "None" not in message


def test_tuning_begun_and_done(own_handle, caplog):
    problem = dnn.convolution_forward.problem(
        dnn.TensorSpec((1, 3, 6, 6)), dnn.FilterSpec((4, 3, 3, 3))
    )
    with dnn.Tuner(own_handle, ":memory:") as tuner, caplog.at_level(logging.INFO, "cudnnlite"):
        best = tuner.choose(problem)
        tuner.choose(problem)
    begun, end = caplog.messages
    assert begun == f"tuning {problem} on {own_handle.device}"
    assert end.startswith(f"tuned {problem} in ")
    assert str(best.algorithm) in end


@pytest.mark.parametrize("limit", [0.0, 1e9])
def test_a_slow_measurement_inside_a_call_is_told_once(own_handle, caplog, monkeypatch, limit):
    monkeypatch.setattr(tuner_module, "SLOW_SECONDS", limit)
    x, w = operands(own_handle)
    with dnn.autotuned(own_handle, cache=":memory:") as tuner:
        tuner.choose(
            dnn.convolution_forward.problem(x.spec, dnn.FilterSpec((2, 3, 3, 3)))
        )  # asked for: no surprise
        for size in (6, 5):
            dnn.convolution_forward(
                own_handle, own_handle.array(np.ones((1, 3, size, size), np.float32)), w
            )
    messages = [message for message in caplog.messages if "call tune_model before" in message]
    assert len(messages) == (limit == 0.0)
    assert all(" took " in message and " s; other calls" in message for message in messages)
