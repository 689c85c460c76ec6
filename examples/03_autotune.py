"""Choosing an algorithm: cuDNN's ranking, cudnnFind's, and the tuner's, for one convolution.

Runs on a GPU, or without one: CUDNNLITE_DEVICE=emulated python examples/03_autotune.py
"""

import os

import numpy as np

import cudnnlite as dnn

os.environ.setdefault("CUDNNLITE_DEVICE", "auto")
random = np.random.default_rng(0)
image = random.standard_normal((8, 16, 28, 28), dtype=np.float32)
kernel = random.standard_normal((32, 16, 3, 3), dtype=np.float32)
conv = dnn.ConvolutionSpec(padding=1, math_type=dnn.TRUE_FLOAT32)

with dnn.Handle() as handle:
    print(f"device: {handle.device}")
    if handle.device.kind == "emulated":
        print("NumPy computes: the times below say nothing of a GPU")
    x, w = handle.array(image), handle.array(kernel)

    ranked = dnn.get_convolution_forward(handle, x, w, conv).best()
    found = dnn.find_convolution_forward(handle, x, w, conv).best()

    tuner = dnn.Tuner(handle, cache=":memory:")
    problem = dnn.ConvolutionForwardProblem(x.spec, dnn.FilterSpec.from_tensor(w.spec), conv)
    table = tuner.tune(problem, {"x": x, "w": w})
    print(table.explain())

    by_choice = {(row.algorithm, row.math_type): row for row in table}
    print("\nwhat each would cost:")
    for who, row in (("heuristic", ranked), ("cudnnFind", found), ("tuner", table.best())):
        same = by_choice[row.algorithm, row.math_type]
        print(f"  {who:10} {same.algorithm!s:22} {same.time_ms:.4f} ms, error {same.error:.1e}")

    print("\ntime against workspace:")
    for row in table.pareto():
        print(f"  {row}")

    y = dnn.convolution_forward(handle, x, w, conv, algorithm=table.best())
    for row in table:  # whichever is chosen, the result is the same but for rounding
        if row.ok:
            other = dnn.convolution_forward(handle, x, w, conv, algorithm=row)
            assert np.allclose(y.numpy(), other.numpy(), atol=1e-3)
