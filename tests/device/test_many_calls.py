"""10,000 calls of what no sample describes: memory and native objects are where they began.

Fifty on the emulated device, which is slow; CUDNNLITE_CALLS is another number for both.
Operations with samples have the same test in test_operations.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import Census

import cudnnlite as dnn

Step = Callable[[], Any]


def calls_of(handle: dnn.Handle) -> int:
    return int(os.environ.get("CUDNNLITE_CALLS", 0)) or (
        10_000 if handle.device.kind == "cuda" else 50
    )


def ones(
    handle: dnn.Handle, *shape: int, dtype: str = "float32", layout: Any = None
) -> dnn.DeviceArray:
    return handle.array(np.ones(shape, np.float32), dtype=dtype, layout=layout)


def dropout(handle: dnn.Handle) -> Step:
    state, x = dnn.DropoutState(handle), ones(handle, 2, 3, 4, 5)

    def step() -> Any:
        _, reserve = dnn.dropout_forward(handle, x, 0.5, dropout_state=state)
        return dnn.dropout_backward(handle, x, 0.5, reserve, dropout_state=state)

    return step


def fused_normalization(handle: dnn.Handle) -> Step:
    x, z, dy = (ones(handle, 3, 8, 5, 4, dtype="float16", layout="NHWC") for _ in range(3))
    scale, bias, mean, var = (ones(handle, 1, 8, 1, 1) for _ in range(4))

    def step() -> Any:
        arguments = {"running_mean": mean, "running_var": var, "activation": "relu", "z": z}
        y, *saved, reserve = dnn.batch_normalization_training(handle, x, scale, bias, **arguments)
        arguments = {"activation": "relu", "y": y, "bias": bias, "reserve": reserve, "added": True}
        return dnn.batch_normalization_backward(handle, x, dy, scale, *saved, **arguments)

    return step


def attention(handle: dnn.Handle) -> Step:
    spec = dnn.AttentionSpec(2, 8, q_proj_size=4, o_proj_size=8, bias=True)
    weights, x = dnn.AttentionWeights(handle, spec), ones(handle, 2, 3, 8)
    dweights = dnn.AttentionWeights.zeros_like(handle, weights)

    def step() -> Any:
        dnn.multi_head_attention_forward(handle, spec, weights, x, x, x)
        y, reserve = dnn.multi_head_attention_forward(handle, spec, weights, x, x, x, training=True)
        gradients = dnn.multi_head_attention_backward_data(handle, reserve, y)
        return gradients, dnn.multi_head_attention_backward_weights(handle, reserve, out=dweights)

    return step


def ctc(where: str) -> Callable[[dnn.Handle], Step]:
    def made(handle: dnn.Handle) -> Step:
        x, numbers, spec = (
            ones(handle, 4, 2, 5),
            ([1, 2, 3], [2, 1], [4, 3]),
            dnn.CTCLossSpec(max_label_length=2),
        )
        operands: Any = (
            [handle.array(np.array(n, np.int32)) for n in numbers] if where == "device" else numbers
        )
        return lambda: dnn.ctc_loss(handle, x, *operands, spec)

    return made


def recurrent(handle: dnn.Handle) -> Step:
    spec = dnn.RNNSpec("lstm", 4, 8)
    weights, x = dnn.RNNWeights(handle, spec), ones(handle, 3, 2, 4)
    dweights = dnn.RNNWeights.zeros_like(handle, weights)

    def step() -> Any:
        result = dnn.rnn_forward(handle, spec, weights, x, training=True)
        gradients = dnn.rnn_backward_data(handle, result.reserve, result.y)
        return gradients, dnn.rnn_backward_weights(handle, result.reserve, out=dweights)

    return step


def transformed_filter(handle: dnn.Handle) -> Step:
    w = ones(handle, 4, 8, 2, 4)
    return lambda: dnn.transform_filter(handle, w, fold=(2, 2))


STEPS = {
    "dropout": dropout,
    "fused normalisation": fused_normalization,
    "attention": attention,
    "ctc, host": ctc("host"),
    "ctc, device": ctc("device"),
    "recurrent": recurrent,
    "transform_filter": transformed_filter,
}


@pytest.mark.parametrize("name", STEPS)
def test_many_calls_leave_nothing_behind(handle: dnn.Handle, name: str) -> None:
    step = STEPS[name](handle)
    for _ in range(
        20
    ):  # the plans that the handle keeps, and as many addresses as a plan remembers
        step()
    handle.synchronize()
    census = Census(handle.device)
    for _ in range(calls_of(handle)):
        step()
    handle.synchronize()
    assert census.natives == []
    assert census.memory <= 0
