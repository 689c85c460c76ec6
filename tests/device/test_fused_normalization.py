"""Batch normalisation with an addition and a relu in one call.

It is compared with PyTorch in float64; what cuDNN does not do is refused.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tolerances import OPERATION_BOUNDS, assert_near

import cudnnlite as dnn

from .problems import LAST, random_values

HALVES = ("float32", "float16", "bfloat16")


def operands(
    handle: dnn.Handle, dtype: str, shape: tuple[int, ...] = (3, 8, 5, 4)
) -> dict[str, Any]:
    rng, channel_shape = np.random.default_rng(0), (1, shape[1], *[1] * (len(shape) - 2))
    wide = "float64" if dtype == "float64" else "float32"
    hosts = {name: random_values(rng, shape, dtype) for name in ("x", "z", "dy")}
    hosts |= {name: random_values(rng, channel_shape, wide) for name in ("scale", "bias")}
    hosts |= {
        "running_mean": np.zeros(channel_shape, wide),
        "running_var": np.ones(channel_shape, wide),
    }
    return {
        name: (host, handle.array(host, layout=LAST[len(shape)])) for name, host in hosts.items()
    }


def train(handle: dnn.Handle, tensors: Any, added: bool, **options: Any) -> Any:
    arguments = {name: tensors[name][1] for name in ("running_mean", "running_var")}
    arguments |= {
        "activation": "relu",
        "momentum": 0.25,
        "z": tensors["z"][1] if added else None,
    } | options
    return dnn.batch_normalization_training(
        handle, *(tensors[name][1] for name in ("x", "scale", "bias")), **arguments
    )


@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("shape", [(3, 8, 5, 4), (2, 12, 3, 4, 5), (4, 4, 9)])
@pytest.mark.parametrize("dtype", HALVES)
def test_both_directions_are_what_pytorch_says(
    handle: dnn.Handle, dtype: str, shape: tuple[int, ...], added: bool
) -> None:
    torch: Any = pytest.importorskip("torch")
    tensors = operands(handle, dtype, shape)
    leaves = {
        name: torch.tensor(tensors[name][0].astype(np.float64), requires_grad=True)
        for name in ("x", "z", "scale", "bias")
    }
    running = [
        torch.zeros(shape[1], dtype=torch.float64),
        torch.ones(shape[1], dtype=torch.float64),
    ]
    flat = [leaves[name].reshape(-1) for name in ("scale", "bias")]
    normal = torch.nn.functional.batch_norm(
        leaves["x"], *running, *flat, training=True, momentum=0.25
    )
    expected = torch.relu(normal + leaves["z"] if added else normal)
    expected.backward(torch.tensor(tensors["dy"][0].astype(np.float64)))
    y, mean, inverse, reserve = train(handle, tensors, added)
    bound = OPERATION_BOUNDS[dtype]
    assert_near(y.numpy(), expected.detach().numpy(), bound)
    for name, statistic in zip(("running_mean", "running_var"), running, strict=True):
        assert_near(tensors[name][1].numpy().ravel(), statistic.numpy(), 1e-5)
    arguments = {
        "activation": "relu",
        "y": y,
        "bias": tensors["bias"][1],
        "reserve": reserve,
        "added": added,
    }
    arrays = (tensors[name][1] for name in ("x", "dy", "scale"))
    gradients = dnn.batch_normalization_backward(handle, *arrays, mean, inverse, **arguments)
    assert len(gradients) == 3 + added
    for name, gradient in zip(("x", "scale", "bias", "z"), gradients, strict=False):
        assert_near(
            gradient.numpy(),
            leaves[name].grad.numpy(),
            8 * bound,
            np.abs(leaves[name].grad.numpy()).max(),
        )


@pytest.mark.parametrize("added", [False, True])
def test_scalars(handle: dnn.Handle, added: bool) -> None:
    tensors = operands(handle, "float32")
    plain = train(handle, tensors, added)[0].numpy()
    old = random_values(np.random.default_rng(5), plain.shape, "float32")
    y = handle.array(old, layout="NHWC")
    outputs = train(handle, tensors, added, alpha=0.5, beta=2.0, out=(y, None, None))
    assert outputs[0] is y
    assert_near(y.numpy(), 0.5 * plain.astype(np.float64) + 2 * old, OPERATION_BOUNDS["float32"])


@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("dtype", HALVES)
def test_running_statistics_may_be_left_out(handle: dnn.Handle, dtype: str, added: bool) -> None:
    tensors = operands(handle, dtype)
    x, z, scale, bias = (tensors[n][0].astype(np.float64) for n in ("x", "z", "scale", "bias"))
    mean, var = x.mean((0, 2, 3), keepdims=True), x.var((0, 2, 3), keepdims=True)
    normal = scale * (x - mean) / np.sqrt(var + 1e-5) + bias
    y, saved_mean, _, reserve = train(handle, tensors, added, running_mean=None, running_var=None)
    assert_near(y.numpy(), np.maximum(normal + z if added else normal, 0), OPERATION_BOUNDS[dtype])
    assert_near(saved_mean.numpy(), mean, 1e-5)
    expected = train(handle, tensors, added)
    np.testing.assert_array_equal(y.numpy(), expected[0].numpy())
    assert reserve.nbytes == expected[-1].nbytes
