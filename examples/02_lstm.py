"""An LSTM by hand and by cuDNN: one cell, two time steps, forward and backward, and the same numbers from both.

Runs on a GPU, or without one: CUDNNLITE_DEVICE=emulated python examples/02_lstm.py
"""

import os

import numpy as np

import cudnnlite as dnn

# one cell: two inputs, one hidden value; g is the new memory that the gates i, f and o let in, keep and let out
W = {"i": [0.95, 0.8], "f": [0.7, 0.45], "g": [0.45, 0.25], "o": [0.6, 0.4]}
U = {"i": 0.8, "f": 0.1, "g": 0.15, "o": 0.25}
b = {"i": 0.65, "f": 0.15, "g": 0.2, "o": 0.1}
x = np.array([[1.0, 2.0], [0.5, 3.0]])
labels = np.array([0.5, 1.25])


def by_hand():
    """Return the two outputs."""
    h = c = 0.0
    outputs = []
    for step in x:
        a = {gate: np.dot(W[gate], step) + U[gate] * h + b[gate] for gate in W}
        i, f, o = (1 / (1 + np.exp(-a[gate])) for gate in "ifo")
        c = f * c + i * np.tanh(a["g"])
        h = o * np.tanh(c)
        outputs.append(h)
    return np.array(outputs)


spec = dnn.RNNSpec("lstm", input_size=2, hidden_size=1, bias="single_input", dtype="float64")

with dnn.Handle(os.environ.get("CUDNNLITE_DEVICE", "auto")) as handle:
    print("on", handle.device)
    weights = dnn.RNNWeights(handle, spec)
    for gate, row in W.items():
        weights[f"layer0.forward.input.{gate}"] = [row]
        weights[f"layer0.forward.recurrent.{gate}"] = [[U[gate]]]
        weights[f"layer0.forward.input.{gate}.bias"] = [b[gate]]
    print(weights.layout())

    sequence = handle.array(x.reshape(2, 1, 2))  # (T, N, input_size)
    y, _, _, reserve = dnn.rnn_forward(handle, spec, weights, sequence, training=True)
    outputs = y.numpy().ravel()
    print("outputs", outputs, "by hand", by_hand())
    assert np.allclose(outputs, by_hand(), atol=1e-12)

    # the gradient of 0.5 * (output - label)^2 over both steps, and one step of gradient descent
    dy = handle.array((outputs - labels).reshape(2, 1, 1))
    dnn.rnn_backward_data(handle, reserve, dy)
    gradients = dnn.rnn_backward_weights(handle, reserve)
    for name, values in weights.numpy().items():
        weights[name] = values - 0.1 * gradients[name].numpy()
    after = dnn.rnn_forward(handle, spec, weights, sequence).y.numpy().ravel()
    loss = [0.5 * np.sum((values - labels) ** 2) for values in (outputs, after)]
    print(f"loss {loss[0]:.6f}, after one step {loss[1]:.6f}")
    assert loss[1] < loss[0]
    print("input weights of the new memory after the step:", weights["layer0.forward.input.g"].numpy().ravel())
    assert np.allclose(weights["layer0.forward.input.g"].numpy(), [[0.45267, 0.25922]], atol=1e-5)
