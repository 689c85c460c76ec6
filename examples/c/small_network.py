"""A small network for images: convolution, bias, ReLU, pooling, a fully connected layer, softmax.

The same in C: small_network.c.  Without a GPU: CUDNNLITE_DEVICE=emulated python small_network.py
"""

import numpy as np

import cudnnlite as dnn


def ramp(shape, start, scale=1.0):
    """Return values that another program can make too: multiples of 1/8 between -0.75 and 0.75, scaled."""
    i = np.arange(np.prod(shape))
    return (((7 * i + start) % 13 - 6) / 8 * scale).astype(np.float32).reshape(shape)


with dnn.Handle() as handle:
    print("cuDNN", handle.version)
    x = handle.array(ramp((4, 3, 16, 16), 3))
    w, bias = handle.array(ramp((8, 3, 3, 3), 5)), handle.array(ramp((1, 8, 1, 1), 1))
    connected, shift = handle.array(ramp((10, 8, 8, 8), 2, 1 / 64)), handle.array(ramp((1, 10, 1, 1), 4))
    fma = dnn.TRUE_FLOAT32  # the default would allow TF32
    y = dnn.convolution_forward(handle, x, w, dnn.ConvolutionSpec(1, math_type=fma), algorithm="implicit_gemm")
    dnn.add_tensor(handle, bias, y)
    dnn.activation_forward(handle, y, "relu", out=y)
    pooled = dnn.pooling_forward(handle, y, dnn.PoolingSpec(2))
    # a filter as large as the image: each of its outputs sees every value
    scores = dnn.convolution_forward(
        handle, pooled, connected, dnn.ConvolutionSpec(math_type=fma), algorithm="implicit_gemm"
    )
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
