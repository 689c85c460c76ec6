"""A first convolution: a filter over an image, the algorithm chosen three ways, the result checked against NumPy.

Runs on a GPU, or without one: CUDNNLITE_DEVICE=emulated python examples/01_first_convolution.py
"""

import os

import numpy as np

import cudnnlite as dnn

rng = np.random.default_rng(0)
image = rng.standard_normal((1, 3, 64, 80), dtype=np.float32)
kernel = rng.standard_normal((8, 3, 5, 5), dtype=np.float32)
conv = dnn.ConvolutionSpec(padding=2, math_type=dnn.TRUE_FLOAT32)  # not TF32: the result is compared to 1e-5 below

with dnn.Handle(os.environ.get("CUDNNLITE_DEVICE", "auto")) as handle:
    print("on", handle.device)
    x, w = handle.array(image), handle.array(kernel)

    # 1. cuDNN's heuristic chooses
    y = dnn.convolution_forward(handle, x, w, conv)

    # 2. cudnnFind runs and times them all; the choice may be limited, and says what it passed over
    found = dnn.find_convolution_forward(handle, x, w, conv)
    print(found)
    best = found.best(workspace_limit="1 MiB", deterministic=True)
    print("chosen:", best)
    assert np.allclose(
        dnn.convolution_forward(handle, x, w, conv, algorithm=best).numpy(), y.numpy(), rtol=1e-2, atol=1e-2
    )

    # 3. you choose, and make a plan for many calls
    with dnn.plan_convolution_forward(handle, x, w, conv, algorithm="IMPLICIT_GEMM") as plan:
        for _ in range(3):
            plan(x, w, out=y)

    # one value by hand: the products of the filter with the patch of the padded image around row 10, column 20
    padded = np.pad(image, ((0, 0), (0, 0), (2, 2), (2, 2))).astype(np.float64)
    expected = (padded[0, :, 10:15, 20:25] * kernel[4]).sum()
    got = y.numpy()[0, 4, 10, 20]
    print(f"y[0, 4, 10, 20] = {got:.6f}, by hand {expected:.6f}")
    assert abs(got - expected) < 1e-4
