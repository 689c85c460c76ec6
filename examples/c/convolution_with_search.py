"""A forward convolution in true float32, with the algorithm that cuDNN's search chooses.

The limit of the workspace is 64 MiB.  The same program in C is convolution_with_search.c.

Without a GPU: CUDNNLITE_DEVICE=emulated python convolution_with_search.py
"""

import numpy as np

import cudnnlite as dnn

WORKSPACE_LIMIT = "64 MiB"


def ramp(shape, start):
    """Return values that another program can make too: multiples of 1/8 between -0.75 and 0.75."""
    i = np.arange(np.prod(shape))
    return (((7 * i + start) % 13 - 6) / 8).astype(np.float32).reshape(shape)


with dnn.Handle() as handle:
    print("cuDNN", handle.version)
    x, w = handle.array(ramp((4, 8, 28, 28), 3)), handle.array(ramp((16, 8, 3, 3), 5))
    conv = dnn.ConvolutionSpec(padding=1, math_type=dnn.TRUE_FLOAT32)  # The default allows TF32.
    table = dnn.convolution_forward.find(handle, x, w, conv, workspace_limit=WORKSPACE_LIMIT)
    best = table.best(workspace_limit=WORKSPACE_LIMIT, deterministic=True)
    print(f"algorithm {best.algorithm:d}, workspace {best.workspace}")
    y = dnn.convolution_forward(handle, x, w, conv, algorithm=best).numpy()

flat = y.ravel().astype(np.float64)
print("shape", *y.shape)
print(f"checksum {flat @ (np.arange(flat.size) % 5 + 1):.6f}")
print("values", *(f"{flat[i]:.6f}" for i in (0, flat.size // 2, -1)))
