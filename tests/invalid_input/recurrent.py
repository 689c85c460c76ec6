"""Invalid arguments of recurrent networks and attention."""

from __future__ import annotations

import itertools

import numpy as np

import cudnnlite as dnn

from .case import Case

LSTM = dnn.RNNSpec("lstm", 2, 3)

HEADS = dnn.AttentionSpec(1, 2)


def train(h):
    return dnn.rnn_forward(h, LSTM, dnn.RNNWeights(h, LSTM), h.zeros((4, 2, 2)), training=True)


CASES: dict[str, Case] = {
    "zeros_like": (
        lambda h: dnn.RNNWeights.zeros_like(None, dnn.RNNWeights(h, LSTM)),
        r"^handle=None is not a Handle",
    ),
    "from_torch": (
        lambda h: dnn.RNNWeights.from_torch(h, "lstm", {}),
        r"^spec='lstm' is not an RNNSpec",
    ),
    "from_onnx": (
        lambda h: dnn.RNNWeights.from_onnx(h, LSTM, 3, 4),
        r"^W of layer 0 has shape \(\)",
    ),
    "from_keras": (
        lambda h: dnn.RNNWeights.from_keras(h, None, []),
        r"^spec=None is not an RNNSpec",
    ),
    "an array as a switch": (
        lambda h: dnn.RNNDescriptor(LSTM, padded_io=np.zeros(2)),
        r"^padded_io=array\(",
    ),
    "endless algorithms": (
        lambda h: dnn.rnn_forward.find(
            h, LSTM, None, h.empty((4, 2, 2)), algorithms=itertools.repeat(1)
        ),
        r"^algorithms=repeat\(1\).*too long",
    ),
    "attention of another size": (
        lambda h: dnn.multi_head_attention_forward(h, HEADS, None, *[h.empty((2, 3, 3))] * 3),
        r"q is TensorSpec\(\(2, 3, 3\), 'float32', 'NCW'\); needed: \(2, 3, 2\) in float32",
    ),
    "all that a training call returns as its reserve": (
        lambda h: dnn.rnn_backward_data(h, train(h), h.empty((4, 2, 3))),
        (
            r"reserve=RNNTrainingOutput.* is no RNNReserve; needed: the one among what "
            r"rnn_forward\(..., training=True\) returns"
        ),
    ),
}
