"""Batch normalisation folded into filter and bias, in arrays of NumPy and PyTorch.

It is compared with the two steps in float64.
"""

from __future__ import annotations

import numpy as np
import pytest
from oracles import onnx_convolution

import cudnnlite as dnn

RNG = np.random.default_rng(0)
W, X = RNG.standard_normal((6, 4, 3, 2)), RNG.standard_normal((2, 4, 9, 7))
SCALE, SHIFT, MEAN, BIAS = RNG.standard_normal((4, 6))
VAR, EPSILON = RNG.random(6) + 0.1, 1e-3


def normalised(bias):
    """Return the convolution, and the normalisation behind it, in NumPy."""
    at = (slice(None), None, None)
    y = onnx_convolution(X, W, (1, 1), (1, 1), (1, 1)) + (0 if bias is None else bias[at])
    return (y - MEAN[at]) / np.sqrt(VAR[at] + EPSILON) * SCALE[at] + SHIFT[at]


@pytest.mark.parametrize("shaped", [False, True])
@pytest.mark.parametrize("bias", [None, BIAS])
def test_numpy(bias, shaped):
    statistics = [SCALE, SHIFT, MEAN, VAR]
    if shaped:  # as cuDNN has them
        statistics = [array.reshape(1, 6, 1, 1) for array in statistics]
    w, b = dnn.fold_batch_normalization(W, bias, *statistics, EPSILON)
    assert type(w) is type(b) is np.ndarray
    assert (w.shape, b.shape) == (W.shape, (1, 6, 1, 1))
    np.testing.assert_allclose(
        onnx_convolution(X, w, (1, 1), (1, 1), (1, 1)) + b, normalised(bias), rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_data_type_is_that_of_the_filter(dtype):
    statistics = [array.astype(np.float32) for array in (BIAS, SCALE, SHIFT, MEAN, VAR)]
    w, b = dnn.fold_batch_normalization(W.astype(dtype), *statistics, EPSILON)
    assert w.dtype == b.dtype == dtype
    wide, wide_b = dnn.fold_batch_normalization(W, BIAS, SCALE, SHIFT, MEAN, VAR, EPSILON)
    bound = {"float32": 2e-6, "float16": 2e-3}[dtype]
    assert np.abs(w - wide).max() <= bound * np.abs(wide).max()
    assert np.abs(b - wide_b).max() <= bound * np.abs(wide_b).max()


def test_half_types_are_folded_in_float32():
    """float16 has no 1e-9, which is added to a variance of 6e-8."""
    halves = [np.full(6, value, np.float16) for value in (0.25, 3e-4, 5e-4, 1e-3, 6e-8)]
    w, b = dnn.fold_batch_normalization(W.astype(np.float16), *halves, epsilon=1e-9)
    wide, wide_b = dnn.fold_batch_normalization(
        W.astype(np.float16).astype(float), *[half.astype(float) for half in halves], epsilon=1e-9
    )
    np.testing.assert_allclose(w, wide, rtol=1e-3)
    np.testing.assert_allclose(b, wide_b, rtol=1e-3)


def test_torch_keeps_its_own_arrays_and_their_gradients():
    torch = pytest.importorskip("torch")
    tensors = [
        torch.tensor(array, dtype=torch.float64) for array in (W, BIAS, SCALE, SHIFT, MEAN, VAR)
    ]
    tensors[0].requires_grad_()
    w, b = dnn.fold_batch_normalization(*tensors, EPSILON)
    assert isinstance(w, torch.Tensor)
    assert isinstance(b, torch.Tensor)
    x = torch.tensor(X)
    y = torch.nn.functional.conv2d(x, w, b.reshape(-1), padding=1)
    steps = torch.nn.functional.conv2d(x, tensors[0], tensors[1], padding=1)
    steps = torch.nn.functional.batch_norm(
        steps, tensors[4], tensors[5], tensors[2], tensors[3], eps=EPSILON
    )
    torch.testing.assert_close(y, steps)
    half, _ = dnn.fold_batch_normalization(
        tensors[0].half(), *[t.float() for t in tensors[1:]], EPSILON
    )
    assert half.dtype == torch.float16
    y.sum().backward()
    assert torch.isfinite(tensors[0].grad).all()


def test_one_dimension():
    w, b = dnn.fold_batch_normalization(W[..., 0], None, SCALE, SHIFT, MEAN, VAR)
    assert (w.shape, b.shape) == ((6, 4, 3), (1, 6, 1))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"mean": MEAN[:5]}, r"mean has shape \(5,\); needed: 6 values"),
        ({"bias": 1.0}, r"bias has shape \(\); needed: 6"),
        ({"scale": [1.0] * 6}, r"scale has shape \(\); needed: 6"),
        ({"var": None}, r"var has shape \(\); needed: 6"),
        ({"w": [[1.0]]}, "w of type list has no arithmetic"),
        ({"w": np.ones(6)}, "w of type ndarray has .* no shape"),
        ({"epsilon": "x"}, "epsilon='x' must be a real number"),
        ({"mean": np.array(["x"] * 6)}, "cannot be folded"),
    ],
)
def test_what_cannot_be_folded(changed, message):
    arguments = {
        "w": W,
        "bias": BIAS,
        "scale": SCALE,
        "shift": SHIFT,
        "mean": MEAN,
        "var": VAR,
    } | changed
    with pytest.raises(dnn.ArgumentError, match=message):
        dnn.fold_batch_normalization(**arguments)


def test_an_array_of_ours_has_no_arithmetic():
    with (
        dnn.Handle(device="emulated") as handle,
        pytest.raises(dnn.ArgumentError, match="w of type DeviceArray"),
    ):
        dnn.fold_batch_normalization(handle.array(W), BIAS, SCALE, SHIFT, MEAN, VAR)
