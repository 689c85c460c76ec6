"""Spatial transformers against PyTorch's affine_grid and grid_sample in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.refusals import ARGUMENT, refuses
from tolerances import OPERATION_BOUNDS, assert_near

import cudnnlite as dnn

from .operation_samples import LAYOUTS, spec_of
from .problems import random_values, upload

DTYPES = ("float32", "float64", "float16")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_both_directions_are_what_pytorch_says(handle: dnn.Handle, dtype: str, layout: str) -> None:
    torch: Any = pytest.importorskip("torch")
    rng, shape, points = np.random.default_rng(0), (2, 3, 5, 7), (2, 3, 4, 6)
    theta, x, dy = (random_values(rng, s, dtype) for s in ((2, 2, 3), shape, points))
    theta = (theta * theta.dtype.type(0.7)).astype(theta.dtype)
    leaves = [torch.tensor(host.astype(np.float64), requires_grad=True) for host in (theta, x)]
    functions = torch.nn.functional
    torch_grid = functions.affine_grid(leaves[0], list(points), align_corners=True)
    grid = dnn.spatial_transformer_grid(handle, handle.array(theta), points)
    assert_near(grid.numpy(), torch_grid.detach().numpy(), OPERATION_BOUNDS[dtype])
    places = torch.tensor(grid.numpy().astype(np.float64), requires_grad=True)
    expected = functions.grid_sample(leaves[1], places, align_corners=True)
    expected.backward(torch.tensor(dy.astype(np.float64)))
    images = upload(handle, spec_of(shape, dtype, layout), x)
    y = dnn.spatial_transformer_sample(handle, images, grid)
    # a point moves by half a rounding of its place, times a slope of some units
    assert_near(y.numpy(), expected.detach().numpy(), 4 * OPERATION_BOUNDS[dtype])
    gradient = upload(handle, spec_of(points, dtype, layout), dy)
    dx, dgrid = dnn.spatial_transformer_sample_backward(handle, images, grid, gradient)
    assert_near(dx.numpy(), leaves[1].grad.numpy(), 4 * OPERATION_BOUNDS[dtype])
    assert_near(dgrid.numpy(), places.grad.numpy(), 4 * OPERATION_BOUNDS[dtype])
    torch_grid.backward(torch.tensor(dgrid.numpy().astype(np.float64)))
    dtheta = dnn.spatial_transformer_grid_backward(handle, dgrid, points)
    assert_near(dtheta.numpy(), leaves[0].grad.numpy(), 4 * OPERATION_BOUNDS[dtype])


def test_what_is_refused(handle: dnn.Handle) -> None:
    theta, x = (
        handle.array(np.ones((2, 2, 3), np.float32)),
        handle.array(np.ones((2, 3, 5, 7), np.float32)),
    )
    for wrong, match in (
        ((2, 3, 4), "rank 3"),
        ((2, 3, 4, 5, 6), "2-D images only"),
        ((3, 3, 4, 6), "theta is"),
        ("x", "transformer="),
        (None, "transformer="),
    ):
        refuses(
            ARGUMENT, match, lambda wrong=wrong: dnn.spatial_transformer_grid(handle, theta, wrong)
        )
    refuses(
        ARGUMENT, "bfloat16; allowed", lambda: dnn.SpatialTransformerSpec((1, 1, 2, 2), "bfloat16")
    )
    for wrong in ((2, 4, 6, 3), (3, 4, 6, 2)):
        grid = handle.empty(wrong)
        refuses(
            ARGUMENT,
            "grid is|x has",
            lambda grid=grid: dnn.spatial_transformer_sample(handle, x, grid),
        )
    with dnn.SpatialTransformerDescriptor(
        dnn.SpatialTransformerSpec((2, 3, 4, 6)), api=handle.api
    ) as descriptor:
        assert descriptor.spec.shape == (2, 3, 4, 6)
        refuses(ARGUMENT, "no function", descriptor.read_back)
