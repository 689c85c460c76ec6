"""A small network for images: convolution, bias, ReLU, pooling, a fully connected layer, softmax.

The same program in C is small_network.c.

Without a GPU: CUDNNLITE_DEVICE=emulated python small_network.py
"""

import numpy as np

import cudnnlite as dnn


def ramp(shape, start, scale=1.0):
    """Return values that another program can make too: multiples of scale/8 up to 0.75 * scale."""
    i = np.arange(np.prod(shape))
    return (((7 * i + start) % 13 - 6) / 8 * scale).astype(np.float32).reshape(shape)


with dnn.Handle() as handle:
    print("cuDNN", handle.version)
    x = handle.array(ramp((4, 3, 16, 16), 3))
    w, bias = handle.array(ramp((8, 3, 3, 3), 5)), handle.array(ramp((1, 8, 1, 1), 1))
    connected = handle.array(ramp((10, 8, 8, 8), 2, 1 / 64))
    shift = handle.array(ramp((1, 10, 1, 1), 4))
    conv = dnn.ConvolutionSpec(1, math_type=dnn.TRUE_FLOAT32)  # The default allows TF32.
    y = dnn.convolution_forward(handle, x, w, conv, algorithm="implicit_gemm")
    dnn.add_tensor(handle, bias, y)
    dnn.activation_forward(handle, y, "relu", out=y)
    pooled = dnn.pooling_forward(handle, y, dnn.PoolingSpec(2))
    # With a filter as large as the image, each output depends on every value.
    full = dnn.ConvolutionSpec(math_type=dnn.TRUE_FLOAT32)
    scores = dnn.convolution_forward(handle, pooled, connected, full, algorithm="implicit_gemm")
    dnn.add_tensor(handle, shift, scores)
    odds = dnn.softmax_forward(handle, scores, mode="channel")
    for name, array in (("pooled", pooled), ("scores", scores), ("odds", odds)):
        flat = array.numpy().ravel().astype(np.float64)
        three = (flat[i] for i in (0, flat.size // 2, -1))
        print(
            name,
            f"checksum {flat @ (np.arange(flat.size) % 5 + 1):.6f}",
            "values",
            *(f"{value:.6f}" for value in three),
        )
