"""Workspace and reserve space that cuDNN reads before it writes have no influence.

compute-sanitizer's initcheck finds such reads on an H200 (cuDNN 9.19): of the workspace in
`cudnnRNNForward` where sequences end early, of the reserve space in
`cudnnMultiHeadAttnBackwardData`.
"""

import numpy as np
import pytest

import cudnnlite as dnn
from cudnnlite import RNNSpec

from .problems import fill_scratch

BYTES = (0, 0xFF, 0x5A)


def random(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def assert_same(results):
    for other in results[1:]:
        for one, two in zip(results[0], other, strict=True):
            assert np.isfinite(one).all()
            np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_a_recurrent_network(handle, cell):
    spec = RNNSpec(cell, 6, 8, num_layers=2, bidirectional=True)
    weights, x, results = dnn.RNNWeights(handle, spec), handle.array(random(1, 5, 3, 6)), []
    weights.update(
        {name: random(number, *weights[name].shape) for number, name in enumerate(weights)}
    )
    dy = handle.array(random(2, 5, 3, 16))
    for byte in BYTES:
        with dnn.rnn_forward.plan(handle, spec, None, x, lengths=[5, 3, 2], training=True) as plan:
            reserve, workspace = plan.new_reserve(), handle.empty((plan.workspace,), "uint8")
            for memory in (workspace, reserve.array):
                memory.fill(byte)
            fill_scratch(handle, byte, plan.workspace)
            out = plan(weights, x, lengths=[5, 3, 2], reserve=reserve, workspace=workspace)
            gradients = plan.backward_data(out.reserve, dy)
            dweights = plan.backward_weights(out.reserve).array
        arrays = (out.y, out.hy, out.cy, *gradients, dweights)
        results.append([array.numpy() for array in arrays if array is not None])
    assert_same(results)


@pytest.mark.parametrize(
    "room", [{}, {"max_q_length": 9, "max_kv_length": 8, "max_batch": 5, "max_beam": 4}]
)
def test_attention(handle, room):
    """With room to spare, had cuDNN been told of it, gradients were wrong."""
    sizes = {"q_proj_size": 4, "k_proj_size": 4, "v_proj_size": 4, "o_proj_size": 8}
    spec, results = dnn.AttentionSpec(2, 8, **sizes, **room), []
    weights = dnn.AttentionWeights(handle, spec)
    weights.update(
        {name: random(number, *weights[name].shape) for number, name in enumerate(weights)}
    )
    q, dy = handle.array(random(1, 2, 5, 8)), handle.array(random(2, 2, 5, 8))
    lengths = {"q_lengths": [5, 2], "kv_lengths": [3, 4]} if room else {}
    reserve = dnn.multi_head_attention_forward(
        handle, spec, weights, q, q, q, training=True, **lengths
    ).reserve
    for byte in BYTES:
        reserve.array.fill(byte)
        fill_scratch(handle, byte)
        out = dnn.multi_head_attention_forward(
            handle, spec, weights, q, q, q, training=True, reserve=reserve, **lengths
        )
        fill_scratch(handle, byte)
        gradients = dnn.multi_head_attention_backward_data(handle, reserve, dy)
        dweights = dnn.multi_head_attention_backward_weights(handle, reserve).array
        results.append([array.numpy() for array in (out.y, *gradients, dweights)])
    assert_same(results)
