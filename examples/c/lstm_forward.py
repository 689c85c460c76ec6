"""The forward pass of a bidirectional LSTM in true float32.

It has two layers, and three sequences of different lengths.  The same program in C is
lstm_forward.c.

Without a GPU: CUDNNLITE_DEVICE=emulated python lstm_forward.py
"""

import numpy as np

import cudnnlite as dnn


def ramp(shape, start):
    """Return values that another program can make too: multiples of 1/8 between -0.75 and 0.75."""
    i = np.arange(np.prod(shape))
    return (((7 * i + start) % 13 - 6) / 8).astype(np.float32).reshape(shape)


def report(name, array):
    """Print a checksum and three values."""
    flat = array.numpy().ravel().astype(np.float64)
    values = " ".join(f"{flat[i]:.6f}" for i in (0, flat.size // 2, -1))
    print(f"{name} checksum {flat @ (np.arange(flat.size) % 5 + 1):.6f} values {values}")


with dnn.Handle() as handle:
    print("cuDNN", handle.version)
    lstm = dnn.RNNSpec("lstm", 5, 8, num_layers=2, bidirectional=True, math_type=dnn.TRUE_FLOAT32)
    weights = dnn.RNNWeights(handle, lstm)
    for number, (name, part) in enumerate(weights.items()):
        weights[name] = ramp(part.shape, number)
    x = handle.array(ramp((6, 3, 5), 3))
    y, hy, cy = dnn.rnn_forward(handle, lstm, weights, x, lengths=[6, 4, 2], algorithm="STANDARD")
    report("y", y)
    report("hy", hy)
    report("cy", cy)
