"""The NumPy kernels of gradients where one product does not take everything: in parts, over images and over rows."""

from __future__ import annotations

import numpy as np
import pytest
from oracles import HAS_TORCH

from cudnnlite.emulated.kernels import GRADIENTS
from cudnnlite.enums import ConvolutionMode
from cudnnlite.specs import ConvolutionSpec

# name: (x shape, w shape, ConvolutionSpec options)
LARGE = {
    "images": ((11, 16, 230, 231), (2, 8, 3, 2), {"padding": 1, "groups": 2}),
    "rows": ((1, 40, 500, 501), (2, 40, 2, 3), {"padding": (0, 1), "dilation": (2, 1)}),
    "stride": ((3, 24, 701, 640), (3, 8, 3, 3), {"stride": (2, 1), "groups": 3, "mode": "convolution"}),
}


@pytest.mark.skipif(not HAS_TORCH, reason="PyTorch is not installed")
@pytest.mark.parametrize("name", LARGE)
def test_large_gradients_are_computed_in_parts(name):
    import torch

    x_shape, w_shape, options = LARGE[name]
    rng, conv = np.random.default_rng(0), ConvolutionSpec(**options)
    x, w = (rng.standard_normal(shape, np.float32) for shape in (x_shape, w_shape))
    dy = rng.standard_normal(conv.output_shape(x_shape, w_shape), np.float32)
    padding, stride, dilation = conv.steps(2)
    turned_round = conv.mode == ConvolutionMode.CONVOLUTION
    turned = np.flip(w, (2, 3)).copy() if turned_round else w
    tensors = (torch.from_numpy(array) for array in (dy, x, turned))
    steps = [0], list(stride), list(padding), list(dilation), False, [0, 0], conv.groups, [True, True, False]
    dx, dw, _ = (None if a is None else a.numpy() for a in torch.ops.aten.convolution_backward(*tensors, *steps))
    dw = np.flip(dw, (2, 3)) if turned_round else dw
    size = GRADIENTS["dx"].size(x_shape, w_shape, conv, np.float32)
    assert size < x.nbytes  # in parts
    scratch = np.full(size, 0xFF, np.uint8)
    got = np.full(x_shape, np.nan, np.float32)
    GRADIENTS["dx"].run(w, dy, conv, got, scratch)
    assert np.linalg.norm(got - dx) < 1e-6 * np.linalg.norm(dx)
    got = np.ones(w_shape, np.float32)  # the gradient of a filter is added
    GRADIENTS["dw"].run(x, dy, conv, got, scratch)
    assert np.linalg.norm(got - 1 - dw) < 1e-5 * np.linalg.norm(dw)


@pytest.mark.parametrize(
    "x", [(1, 3, 9), (64, 512, 7, 7), (1, 4096, 300, 300), (2, 8192, 65, 66, 67), (512, 3, 224, 224)]
)
def test_the_workspace_is_bounded(x):
    for itemsize, dtype in ((4, np.float32), (8, np.float64)):
        size = GRADIENTS["dx"].size(x, (5, x[1], *[1] * (len(x) - 2)), ConvolutionSpec(), dtype)
        assert itemsize * x[1] <= size <= 32 << 20
