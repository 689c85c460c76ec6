"""The oracles agree with each other; what they agree on is what the devices are compared with."""

from __future__ import annotations

import numpy as np
import pytest
from oracles import (
    HAS_TORCH,
    onnx_convolution,
    onnx_gradient_of_w,
    onnx_gradient_of_x,
    scipy_convolution,
    torch_convolution,
)

CASES = {
    "2d": ((2, 3, 9, 11), (4, 3, 3, 2), (1, 0), (2, 1), (1, 2), 1),
    "2d_groups": ((2, 6, 9, 11), (4, 3, 3, 2), (1, 2), (2, 3), (2, 1), 2),
    "1d": ((2, 3, 19), (4, 3, 5), (2,), (2,), (3,), 1),
    "3d": ((2, 3, 5, 6, 7), (4, 3, 3, 2, 1), (1, 0, 1), (1, 2, 1), (1, 1, 2), 1),
    "3d_depthwise": ((1, 3, 5, 6, 7), (3, 1, 3, 2, 1), (1, 0, 1), (1, 2, 1), (1, 1, 2), 3),
}


@pytest.mark.parametrize("flip", [False, True], ids=["cross_correlation", "convolution"])
@pytest.mark.parametrize("case", CASES)
def test_oracles_agree(case: str, flip: bool) -> None:
    x_shape, w_shape, padding, stride, dilation, groups = CASES[case]
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal(x_shape), rng.standard_normal(w_shape)
    result = onnx_convolution(x, w, padding, stride, dilation, groups, flip)
    if groups == 1:
        other = scipy_convolution(x, w, padding, stride, dilation, flip)
        np.testing.assert_allclose(result, other, rtol=1e-12, atol=1e-12)
    if HAS_TORCH:
        other = torch_convolution(x, w, padding, stride, dilation, groups, flip)
        np.testing.assert_allclose(result, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("flip", [False, True], ids=["cross_correlation", "convolution"])
@pytest.mark.parametrize("case", CASES)
def test_gradients_are_adjoint_and_pytorchs(case: str, flip: bool) -> None:
    x_shape, w_shape, *steps = CASES[case]
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal(x_shape), rng.standard_normal(w_shape)
    y = onnx_convolution(x, w, *steps, flip)
    dy = rng.standard_normal(y.shape)
    dx, dw = (
        onnx_gradient_of_x(x.shape, w, dy, *steps, flip),
        onnx_gradient_of_w(x, w.shape, dy, *steps, flip),
    )
    assert np.vdot(dx, x) == pytest.approx(np.vdot(y, dy))
    assert np.vdot(dw, w) == pytest.approx(np.vdot(y, dy))
    if HAS_TORCH:
        import torch

        padding, stride, dilation, groups = steps
        axes = tuple(range(2, w.ndim))
        turned = np.flip(w, axes).copy() if flip else w
        options = (
            [0],
            list(stride),
            list(padding),
            list(dilation),
            False,
            [0] * len(axes),
            groups,
            [True, True, False],
        )
        tensors = (torch.from_numpy(array) for array in (dy, x, turned))
        torch_gradients = torch.ops.aten.convolution_backward(*tensors, *options)
        np.testing.assert_allclose(dx, torch_gradients[0].numpy(), rtol=1e-12, atol=1e-12)
        other = torch_gradients[1].flip(axes) if flip else torch_gradients[1]
        np.testing.assert_allclose(dw, other.numpy(), rtol=1e-12, atol=1e-12)


def test_onnx_adds_float64_in_float64() -> None:
    x = np.array([1.0, 1e-12]).reshape(1, 2, 1, 1)
    result = onnx_convolution(x, np.ones((1, 2, 1, 1)), (0, 0), (1, 1), (1, 1))
    assert result.item() == 1 + 1e-12
